"""Code shared by all trainers: timing of rollouts, and the files that record them."""
