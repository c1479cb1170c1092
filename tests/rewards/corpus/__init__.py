"""Hostile submissions by what they attack, and the shapes of the tests that they are tried on."""
