"""Inspect AI on any backend of sandboxkit: `Task(sandbox="sandboxkit")`.

`sandbox=("sandboxkit", "docker")` or `--sandbox sandboxkit:docker` selects the backend.
`("sandboxkit", "sandbox.yaml")` names a file with the fields of `SandboxkitConfig`. A `sandboxkit.yaml`
in the task's folder is found automatically.
"""

from sandboxkit.integrations._extras import needs

with needs("inspect"):
    from sandboxkit.integrations.inspect._config import SandboxkitConfig
    from sandboxkit.integrations.inspect._environment import SandboxkitSandboxEnvironment

__all__ = ["SandboxkitConfig", "SandboxkitSandboxEnvironment"]
