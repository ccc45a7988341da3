"""What a user states: boxes, problems, conditions, references."""
