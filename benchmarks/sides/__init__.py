"""What is compared: each module is a process that does and times what the harness tells it."""
