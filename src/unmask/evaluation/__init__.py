"""Held-out metrics with bootstrap intervals, self-contained SVG charts, and the HTML report of a run. No torch here."""
