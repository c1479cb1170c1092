"""Kernels in real sandboxes, of both kinds."""
