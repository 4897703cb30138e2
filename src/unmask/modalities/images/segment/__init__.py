"""Segmentation: a class for every pixel, learnt from pictures with masks."""
