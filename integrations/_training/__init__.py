"""Code shared by all trainers: grading of completions, timing of rollouts, and the files that record them."""
