"""Prime Intellect's verifiers on any backend of sandboxkit: each episode in a sandbox of its own.

verifiers' list of runtimes is closed, but a run may be placed into a box that somebody else made. A
taskset that exports `SandboxkitEnv` beside itself has its episodes played so; `boxed` is for envs of
one's own: `async with boxed(session, task) as box: await agents.agent.run(task, runtime=box)`.
"""

from sandboxkit.integrations._extras import needs

with needs("verifiers"):
    from sandboxkit.integrations.verifiers._env import SandboxkitEnv, SandboxkitEnvConfig, boxed
    from sandboxkit.integrations.verifiers._runtime import SandboxkitRuntime

__all__ = ["SandboxkitEnv", "SandboxkitEnvConfig", "SandboxkitRuntime", "boxed"]
