"""What each column is, found in its raw cells or told, and its values as numbers."""
