"""OpenEnv (openenv 0.10): our tasks behind its server, its images in our sandboxes, its environments in our loops."""

from sandboxkit.integrations._extras import needs

with needs("openenv"):
    from sandboxkit.integrations.openenv._container import SandboxkitContainerProvider
    from sandboxkit.integrations.openenv._env import OpenEnv, OpenEnvGrader, as_env
    from sandboxkit.integrations.openenv._server import swe_app

__all__ = [
    "OpenEnv",
    "OpenEnvGrader",
    "SandboxkitContainerProvider",
    "as_env",
    "swe_app",
]
