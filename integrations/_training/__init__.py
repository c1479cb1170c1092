"""Code shared by all trainers: grading of completions, timing of rollouts, and records of rollouts."""
