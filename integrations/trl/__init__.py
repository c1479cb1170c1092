"""Sandboxes as the rewards, tools and environments of TRL's GRPOTrainer (1.16 and later)."""

from sandboxkit.integrations._extras import needs

with needs("trl"):
    from sandboxkit.integrations.trl._environment import SandboxEnvironment, SandboxEnvironments
    from sandboxkit.integrations.trl._environment_reward import EnvironmentReward
    from sandboxkit.integrations.trl._reward import CombinedReward, SandboxReward
    from sandboxkit.integrations.trl._rollouts import SandboxRollouts
    from sandboxkit.integrations.trl._swe import SweEnvironment, SweEnvironments
    from sandboxkit.integrations.trl._tools import SandboxTools

__all__ = [
    "CombinedReward",
    "EnvironmentReward",
    "SandboxEnvironment",
    "SandboxEnvironments",
    "SandboxReward",
    "SandboxRollouts",
    "SandboxTools",
    "SweEnvironment",
    "SweEnvironments",
]
