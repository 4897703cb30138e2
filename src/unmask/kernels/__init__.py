"""Products, attention and losses written for speed: tensors in, tensors out; they know of no model and no batch."""
