"""Studies: many runs that answer one question, as a table."""
