"""Figures of a run, its HTML report, and the live explorer."""
