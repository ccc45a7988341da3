"""Derivatives by name, and what an equation contains linearly."""
