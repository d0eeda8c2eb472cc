"""Pages of HTML that need no other file: a comparison of models, a report on one."""
