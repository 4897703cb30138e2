"""What is suspicious in events and in labels."""
