"""What sandboxkit plugs into: reward functions, trainers and task environments."""
