"""Options of a run's sandbox, and the stored state for reconnecting to it."""

from typing import Any, Literal

from agents.sandbox.session import SandboxSessionState
from agents.sandbox.session.sandbox_client import BaseSandboxClientOptions
from pydantic import Field

from sandboxkit.types import Network, Profile


class SandboxkitClientOptions(BaseSandboxClientOptions):
    """Options of a run's sandbox, which override those of the client's Session; see `SandboxSpec`.

    They are stored with the session's state, so they must not hold secrets: give those to the
    Session.
    """

    type: Literal["sandboxkit"] = "sandboxkit"  # pyright: ignore[reportIncompatibleVariableOverride]  # as the SDK's own
    image: str | None = None
    env: dict[str, str] | None = None
    user: str | None = None
    cpus: float | None = None
    memory_mb: int | None = None
    disk_mb: int | None = None
    pids: int | None = None
    network: Network | None = None
    profile: Profile | None = None
    lifetime: float | None = None
    start_timeout: float | None = None

    def overrides(
        self,
    ) -> dict[str, Any]:  # Any: the keywords of Session.sandbox, which checks them
        """Return the keywords for `Session.sandbox`."""
        given = {name: getattr(self, name) for name in type(self).model_fields if name != "type"}
        return {name: value for name, value in given.items() if value is not None}


class SandboxkitSessionState(SandboxSessionState):
    """The data for reconnecting to a session's sandbox, or for making another like it."""

    type: Literal["sandboxkit"] = "sandboxkit"  # pyright: ignore[reportIncompatibleVariableOverride]  # as the SDK's own
    provider: str
    sandbox_id: str
    options: SandboxkitClientOptions = Field(default_factory=SandboxkitClientOptions)
