"""Rewards from our graders for verl, OpenRLHF, slime, SkyRL and NeMo Gym, one module for each."""
