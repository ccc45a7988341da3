"""Runs: from a problem to a result, in a directory."""
