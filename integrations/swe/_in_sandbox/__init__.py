"""What runs in the sandbox that grades."""
