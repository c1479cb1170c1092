"""Multi-step MBPP rollouts against any OpenAI-compatible endpoint, for ART to train on."""

from sandboxkit.integrations.art._policy import (
    Choice,
    EndpointPolicy,
    Message,
    Policy,
    PolicyError,
    ScriptedPolicy,
)
from sandboxkit.integrations.art._rollout import Rollouts, Trajectory

__all__ = [
    "Choice",
    "EndpointPolicy",
    "Message",
    "Policy",
    "PolicyError",
    "Rollouts",
    "ScriptedPolicy",
    "Trajectory",
]
