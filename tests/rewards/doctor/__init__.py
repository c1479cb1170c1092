"""The doctor of tasks, and the check of their keys."""
