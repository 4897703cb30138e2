"""Questions about what is to come, answered without labels."""
