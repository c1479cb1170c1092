"""Inspect AI on any backend of sandboxkit: `Task(sandbox="sandboxkit")`."""

from sandboxkit.integrations.inspect._config import SandboxkitConfig
from sandboxkit.integrations.inspect._environment import SandboxkitEnvironment

__all__ = ["SandboxkitConfig", "SandboxkitEnvironment"]
