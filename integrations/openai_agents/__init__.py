"""The OpenAI Agents SDK on any backend: `SandboxRunConfig(client=SandboxkitClient(session))`.

The client makes, resumes and deletes the SDK's sandbox sessions; shell, terminals, files,
manifests, snapshots, persist and hydrate go through it. Mounts, paths of this machine and
exposed ports are refused with the SDK's own errors: no sandbox of ours has them.
"""

from sandboxkit.integrations._extras import needs

with needs("openai-agents"):
    from sandboxkit.integrations.openai_agents._client import SandboxkitClient
    from sandboxkit.integrations.openai_agents._session import SandboxkitSession
    from sandboxkit.integrations.openai_agents._state import (
        SandboxkitClientOptions,
        SandboxkitSessionState,
    )

__all__ = [
    "SandboxkitClient",
    "SandboxkitClientOptions",
    "SandboxkitSession",
    "SandboxkitSessionState",
]
