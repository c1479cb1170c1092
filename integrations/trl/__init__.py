"""Sandboxes for TRL's GRPOTrainer: rewards and environments that mask failures of their own."""

from sandboxkit.integrations.trl._environment import EnvironmentPool, SandboxEnvironment
from sandboxkit.integrations.trl._failures import TooManyFailuresError
from sandboxkit.integrations.trl._mask import mask_together
from sandboxkit.integrations.trl._reward import AsyncSandboxReward, SandboxReward

__all__ = [
    "AsyncSandboxReward",
    "EnvironmentPool",
    "SandboxEnvironment",
    "SandboxReward",
    "TooManyFailuresError",
    "mask_together",
]
