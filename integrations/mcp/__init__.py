"""A sandbox as tools of the Model Context Protocol: `sandboxkit mcp`, to be started by a client.

`build(session)` makes the same server for a transport of one's own.
"""

from sandboxkit.integrations._extras import needs

with needs("mcp"):
    from sandboxkit.integrations.mcp._server import build
    from sandboxkit.integrations.mcp._stdio import serve

__all__ = ["build", "serve"]
