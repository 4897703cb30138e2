"""Text as it is served: what a folder answers, by what it was trained for."""
