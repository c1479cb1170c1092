"""FirstCommand: the command for which a sandbox is started, which may be sent along with the start."""

from sandboxkit.types import Command


class FirstCommand:
    """A command that a provider may send along with the start of its sandbox.

    It is sent at most once: the provider claims it before it can reach the sandbox, and the core
    withdraws it when its caller gives up. Both run on the background loop.
    """

    def __init__(self, command: Command) -> None:
        self.command = command
        self.sent = False
        """Whether the command may have reached the sandbox."""
        self._withdrawn = False

    def claim(self) -> bool:
        """Record that the command is about to be sent; return False if it must not be sent."""
        self.sent = not self._withdrawn
        return self.sent

    def refuted(self) -> None:
        """Record proof that the command was not started and never will be; it may be claimed again."""
        self.sent = False

    def withdraw(self) -> bool:
        """Forbid sending the command; return False if it may have been sent already."""
        self._withdrawn = True
        return not self.sent
