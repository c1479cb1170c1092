"""Sandboxes of a service that `sandboxkit serve` runs on another machine, over HTTP."""

from sandboxkit.providers.service._provider import ServiceProvider

__all__ = ["ServiceProvider"]
