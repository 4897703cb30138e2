"""Held-out metrics with bootstrap intervals, self-contained charts, and the HTML report of a run.."""
