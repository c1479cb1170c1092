"""NeMo Gym's package, of which only the base of resources servers is written down here."""
