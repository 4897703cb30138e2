"""One transformer encoder for every modality. It knows nothing of masking: (rows, slots, width) in and out."""
