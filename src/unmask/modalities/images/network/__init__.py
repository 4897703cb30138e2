"""The masked autoencoder, its batches, its folder, and the features that it gives."""
