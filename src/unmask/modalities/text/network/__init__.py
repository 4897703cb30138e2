"""The encoder with its heads, its folder, pretraining and further pretraining."""
