"""Masked prediction, independent of any modality: batch, corruption, model, prediction, loop, fill, score."""
