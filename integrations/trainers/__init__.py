"""Rewards from sandboxkit's graders for verl, OpenRLHF, slime, SkyRL and NeMo Gym, one module for each."""
