"""Attacks by what strangers hand over: images, archives, tasks, labels, and honest ones that must work."""
