"""Integrations of sandboxkit: reward functions, trainers and task environments."""
