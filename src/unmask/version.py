"""The version of this package, which models, caches and reports name."""

__version__ = "0.1.0"
