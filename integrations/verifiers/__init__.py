"""Prime Intellect's verifiers on any backend of sandboxkit, with one sandbox per episode.

verifiers has a fixed list of runtimes, but a run accepts an existing runtime object. A taskset that
also exports `SandboxkitEnv` runs its episodes this way. For custom envs use `boxed`:
`async with boxed(session, task) as box: await agents.agent.run(task, runtime=box)`.
"""

from sandboxkit.integrations._extras import needs

with needs("verifiers"):
    from sandboxkit.integrations.verifiers._env import SandboxkitEnv, SandboxkitEnvConfig, boxed
    from sandboxkit.integrations.verifiers._runtime import SandboxkitRuntime

__all__ = ["SandboxkitEnv", "SandboxkitEnvConfig", "SandboxkitRuntime", "boxed"]
