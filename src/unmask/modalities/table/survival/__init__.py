"""Survival analysis on arrays: curves, Cox regression, and outcomes drawn from both."""
