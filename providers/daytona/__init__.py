"""Sandboxes of Daytona, through its own clients: a REST API, and a toolbox in each sandbox."""

from sandboxkit.providers.daytona._provider import DaytonaProvider

__all__ = ["DaytonaProvider"]
