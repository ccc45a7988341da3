"""A trained network with its problem: calls, fields, heads, files."""
