"""Sandboxes as the rewards and environments of TRL's GRPOTrainer (1.16 and later)."""

from sandboxkit.integrations.trl._environment import SandboxEnvironment, SandboxEnvironments
from sandboxkit.integrations.trl._reward import CombinedReward, SandboxReward

__all__ = ["CombinedReward", "SandboxEnvironment", "SandboxEnvironments", "SandboxReward"]
