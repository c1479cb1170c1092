"""Rewards from sandboxkit's graders for verl, OpenRLHF, slime, SkyRL and NeMo Gym, one module for each.

The functions of this module are for any trainer: pass@k, and which tasks to train on.
"""

from sandboxkit.integrations._training.curves import pass_at_k
from sandboxkit.integrations._training.difficulty import curriculum, kept_rewards, task_key

__all__ = ["curriculum", "kept_rewards", "pass_at_k", "task_key"]
