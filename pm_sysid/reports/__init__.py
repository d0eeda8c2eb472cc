"""HTML reports: verdicts, figures, and tables on one model or several."""
