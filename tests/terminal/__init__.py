"""Terminals: what lasts in them, what they tell, and that nothing of them is left."""
