"""A head for classes, and its training."""
