"""smolagents on any backend: `CodeAgent(..., executor=SandboxkitExecutor(session))`.

The agent's code runs in one Python process of one sandbox, so variables, functions and imports
persist between steps. Code and values travel over the process's own streams: no port is opened, the
image needs no package, and no pickle from a sandbox is ever loaded.
"""

from sandboxkit.integrations._extras import needs

with needs("smolagents"):
    from sandboxkit.integrations.smolagents._executor import SandboxkitExecutor, SandboxLost

__all__ = ["SandboxLost", "SandboxkitExecutor"]
