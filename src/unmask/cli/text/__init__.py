"""The commands of models of text."""
