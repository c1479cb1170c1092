"""What an Inspect task may say about its sandboxes."""

from typing import Any

from pydantic import BaseModel, ConfigDict

from sandboxkit.types import Network, Profile


class SandboxkitConfig(BaseModel, frozen=True):
    """Options of a sample's sandbox; each field but `provider` is that of `SandboxSpec`.

    Used as `SandboxEnvironmentSpec("sandboxkit", SandboxkitConfig(provider="docker"))`. A field
    left out has sandboxkit's own default, and an unknown one is refused.
    """

    model_config = ConfigDict(extra="forbid")

    provider: str | None = None
    """The backend's name. None: SANDBOXKIT_PROVIDER, else the machine's default."""
    image: str | None = None
    env: dict[str, str] | None = None
    workdir: str | None = None
    user: str | None = None
    cpus: float | None = None
    memory_mb: int | None = None
    disk_mb: int | None = None
    pids: int | None = None
    network: Network | None = None
    profile: Profile | None = None
    lifetime: float | None = None

    def options(self) -> dict[str, Any]:  # Any: the keywords of Session, which checks them
        """The keywords for a Session."""
        return self.model_dump(exclude_none=True, exclude={"provider"})
