"""Figures and, later, the HTML report: what a run shows to people."""
