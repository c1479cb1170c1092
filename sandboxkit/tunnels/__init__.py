"""Connections between this machine and a sandbox's ports; see `Sandbox.connect`, `expose` and `serve`."""

from sandboxkit.tunnels._connection import PortConnection
from sandboxkit.tunnels._exposed import Exposed
from sandboxkit.tunnels._served import Handler, Served

__all__ = ["Exposed", "Handler", "PortConnection", "Served"]
