"""The commands of models of patient events."""
