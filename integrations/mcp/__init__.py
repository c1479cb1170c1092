"""An MCP (Model Context Protocol) server with a sandbox's tools: `sandboxkit mcp`, started by a client.

`build(session)` makes the same server for a custom transport.
"""

from sandboxkit.integrations._extras import needs

with needs("mcp"):
    from sandboxkit.integrations.mcp._server import build
    from sandboxkit.integrations.mcp._stdio import serve

__all__ = ["build", "serve"]
