"""smolagents on any backend: `CodeAgent(..., executor=SandboxkitExecutor(session))`.

The agent's code runs in one Python process of one sandbox, so variables, functions and imports
last from step to step. Nothing listens anywhere and the image needs no package: code goes in and
values come out through the process's own streams, and no pickle of a sandbox's is ever opened.
"""

from sandboxkit.integrations._extras import needs

with needs("smolagents"):
    from sandboxkit.integrations.smolagents._executor import SandboxkitExecutor, SandboxLost

__all__ = ["SandboxLost", "SandboxkitExecutor"]
