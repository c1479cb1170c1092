"""The sandbox that a server's calls share, and its replacement when it ends."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from mcp.server.mcpserver.exceptions import ToolError

from sandboxkit import (
    CommandStartError,
    ConfigurationError,
    OutcomeUnknownError,
    Sandbox,
    SandboxError,
    SandboxFileError,
    SandboxNotFoundError,
    SandboxTerminatedError,
    Session,
)

T = TypeVar("T")

NEW = (
    "[This is a new sandbox: the one before it has ended, and its files, processes and installed "
    "packages are gone.]\n"
)


class ServedSandbox:
    """One sandbox of a session, started by the first call and replaced by a new one after its end.

    The next result contains a note, so a sandbox is never replaced silently.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._sandbox = session.sandbox()
        self._replaced = False

    @property
    def sandbox(self) -> Sandbox:
        """The sandbox in which the next call runs."""
        return self._sandbox

    async def call(self, work: Callable[[Sandbox], Awaitable[T]]) -> T:
        """Run `work` in the sandbox. Raises errors of sandboxkit as ToolError, whose text the model sees."""
        sandbox = self._sandbox
        try:
            return await work(sandbox)
        except (SandboxTerminatedError, SandboxNotFoundError) as error:
            self._replace(sandbox)
            raise ToolError(
                f"the sandbox ended: {error}. Its files and processes are gone, including any results "
                "of this call. The next call gets a new, empty sandbox."
            ) from error
        except (CommandStartError, ConfigurationError, SandboxFileError) as error:
            raise ToolError(str(error)) from error
        except OutcomeUnknownError as error:
            raise ToolError(f"it is unknown whether the command ran: {error}") from error
        except SandboxError as error:
            again = " The same call may work later." if error.retryable else ""
            raise ToolError(f"the sandbox's backend failed: {error}.{again}") from error

    def news(self) -> str:
        """Return the prefix of the next result: a note after a replacement, once; otherwise ""."""
        replaced, self._replaced = self._replaced, False
        return NEW if replaced else ""

    def _replace(self, ended: Sandbox) -> None:
        if self._sandbox is ended:  # otherwise another call has replaced it
            ended.stop()  # session.close() retries a failure, and reports it
            self._sandbox, self._replaced = self._session.sandbox(), True
