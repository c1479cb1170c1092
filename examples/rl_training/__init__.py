"""Examples for reinforcement learning; each is a program of its own."""
