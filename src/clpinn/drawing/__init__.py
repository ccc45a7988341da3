"""How figures look, and pictures of single fields and fits."""
