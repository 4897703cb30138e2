"""New rows drawn from a fitted model, and what they keep back."""
