"""The options of a run's sandbox, and the stored state that is used to reconnect to it."""

from typing import TYPE_CHECKING, Literal, Unpack

from agents.sandbox.session import SandboxSessionState
from agents.sandbox.session.sandbox_client import BaseSandboxClientOptions
from pydantic import Field

from sandboxkit.integrations._option_fields import OptionFields
from sandboxkit.options import ConfigOptions


class SandboxkitClientOptions(OptionFields, BaseSandboxClientOptions):
    """Options of a run's sandbox, which override those of the client's Session; see `ConfigOptions`.

    They are stored with the session's state, so they cannot hold secrets: give those to the
    Session. A manifest's root takes precedence over `workdir`.
    """

    type: Literal["sandboxkit"] = "sandboxkit"  # pyright: ignore[reportIncompatibleVariableOverride]  # as the SDK's own

    if TYPE_CHECKING:

        def __init__(self, **options: Unpack[ConfigOptions]) -> None: ...


class SandboxkitSessionState(SandboxSessionState):
    """The data for reconnecting to a session's sandbox, or for starting a new one with its options."""

    type: Literal["sandboxkit"] = "sandboxkit"  # pyright: ignore[reportIncompatibleVariableOverride]  # as the SDK's own
    provider: str
    sandbox_id: str
    options: SandboxkitClientOptions = Field(default_factory=SandboxkitClientOptions)
