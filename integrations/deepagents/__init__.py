"""LangChain deepagents on any backend of sandboxkit: `create_deep_agent(backend=SandboxkitBackend(sandbox))`."""

from sandboxkit.integrations._extras import needs

with needs("deepagents"):
    from sandboxkit.integrations.deepagents._backend import SandboxkitBackend

__all__ = ["SandboxkitBackend"]
