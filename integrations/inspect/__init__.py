"""Inspect AI on any backend of sandboxkit: `Task(sandbox="sandboxkit")`.

`sandbox=("sandboxkit", "docker")`, or `--sandbox sandboxkit:docker`, names the backend;
`("sandboxkit", "sandbox.yaml")` a file with the fields of `SandboxkitConfig`. `sandboxkit.yaml` in the
task's folder is found by itself.
"""

from sandboxkit.integrations._extras import needs

with needs("inspect"):
    from sandboxkit.integrations.inspect._config import SandboxkitConfig
    from sandboxkit.integrations.inspect._environment import SandboxkitEnvironment

__all__ = ["SandboxkitConfig", "SandboxkitEnvironment"]
