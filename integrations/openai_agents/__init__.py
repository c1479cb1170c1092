"""The OpenAI Agents SDK on any backend: `SandboxRunConfig(client=SandboxkitClient(session))`.

The client creates, resumes and deletes the SDK's sandbox sessions. It supports shell, terminals,
files, manifests, snapshots, persist and hydrate. Mounts, host paths and exposed ports are not
supported and raise the SDK's own errors.
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
