"""Conditions on columns and rules between them, as limits per cell."""
