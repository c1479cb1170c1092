"""What is left after a client was killed."""
