"""The sandbox that a server's calls share, and what becomes of it when it ends."""

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


class Workplace:
    """One sandbox of a session, started by the first call; after its end the next call gets a new one.

    That it is a new one is said to whoever gets it: what ends is never replaced silently.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._sandbox = session.sandbox()
        self._replaced = False

    @property
    def sandbox(self) -> Sandbox:
        """The sandbox of the next call."""
        return self._sandbox

    async def call(self, work: Callable[[Sandbox], Awaitable[T]]) -> T:
        """Do `work` in the sandbox. Every error of sandboxkit is a ToolError, which the model reads."""
        sandbox = self._sandbox
        try:
            return await work(sandbox)
        except (SandboxTerminatedError, SandboxNotFoundError) as error:
            self._replace(sandbox)
            raise ToolError(
                f"the sandbox ended: {error}. Its files and processes are gone, and what this call "
                "did of its work is lost. The next call gets a new, empty sandbox."
            ) from error
        except (CommandStartError, ConfigurationError, SandboxFileError) as error:
            raise ToolError(str(error)) from error
        except OutcomeUnknownError as error:
            raise ToolError(f"whether the command ran is not known: {error}") from error
        except SandboxError as error:
            again = " The same call may work later." if error.retryable else ""
            raise ToolError(f"the sandbox's backend failed: {error}.{again}") from error

    def news(self) -> str:
        """What the next answer begins with: that the sandbox is a new one, once; else nothing."""
        replaced, self._replaced = self._replaced, False
        return NEW if replaced else ""

    def _replace(self, ended: Sandbox) -> None:
        if self._sandbox is ended:  # else another call saw the same end before
            ended.stop()  # closing the session tries again, and reports
            self._sandbox, self._replaced = self._session.sandbox(), True
