"""What a masked language model is used for: fill, score, embed, generate, evaluate."""
