"""Training: tasks and their selection, rows, optimisers, stages, the loop."""
