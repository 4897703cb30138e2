"""A model in other people's formats: Hugging Face and sentence-transformers folders, ONNX; and changes of its shape."""
