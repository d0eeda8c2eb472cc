"""ABC nested sampling over one or several models."""
