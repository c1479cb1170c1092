"""Runs sandboxes as Docker containers, hardened by default, with our agent as PID 1."""

from sandboxkit.providers.docker._images import PullProgress
from sandboxkit.providers.docker._provider import DockerProvider

__all__ = ["DockerProvider", "PullProgress"]
