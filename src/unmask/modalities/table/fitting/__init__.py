"""Fitting the distribution to a table, and the fitted table at work on arrays."""
