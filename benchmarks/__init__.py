"""What sandboxkit costs, beside its peers and the floor, in one run."""
