"""The commands of models of images."""
