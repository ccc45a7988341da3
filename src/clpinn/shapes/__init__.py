"""Domains as a user draws them: shapes, their boundaries, and points in them, all as functions of theta in JAX."""
