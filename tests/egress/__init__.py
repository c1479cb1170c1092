"""Egress: what a sandbox may reach by name, tried from inside it."""
