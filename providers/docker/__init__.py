"""Sandboxes as Docker containers, hardened by default, each with our agent as its PID 1."""

from sandboxkit.providers.docker._images import PullProgress
from sandboxkit.providers.docker._provider import DockerProvider

__all__ = ["DockerProvider", "PullProgress"]
