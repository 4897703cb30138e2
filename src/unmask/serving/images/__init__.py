"""Pictures as they are served: hidden parts predicted back, vectors, classes."""
