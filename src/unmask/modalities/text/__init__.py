"""Text: documents, tokenizers, units and the token cache; masked language models made from them."""
