"""From texts to tokens: tokenizers, their training, prepared corpora, batches."""
