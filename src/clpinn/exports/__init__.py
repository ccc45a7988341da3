"""Fields and surrogates in files that other programs read."""
