"""How a request to an agent fails."""

SILENT_AFTER = 7.0
"""Seconds without any data from the agent after which its requests fail."""


class ConnectionEndedError(Exception):
    """The agent's stream ended; `reason` is the agent's last message, "" if there was none.

    `refused`: the agent replied to HELLO with BYE, so it carried out no request.
    """

    def __init__(self, reason: str, *, refused: bool = False) -> None:
        super().__init__(reason or "the agent's stream ended")
        self.reason, self.refused = reason, refused


class ProtocolError(ConnectionEndedError):
    """The agent broke the protocol, which ends its connection; what it sends is not trusted."""

    def __init__(self, what: str) -> None:
        super().__init__(f"protocol error: {what}")


class SilentError(Exception):
    """The agent was silent for so long that a request failed; the agent may recover."""

    def __init__(self, message: str = "") -> None:
        super().__init__(message or f"no data from the agent for {SILENT_AFTER:g} s")


class CallError(Exception):
    """The agent refused a request; `errno` is Linux's number, and `path` the file of a setup at fault."""

    def __init__(self, errno: int, message: str, path: str | None = None) -> None:
        super().__init__(message)
        self.errno, self.path = errno, path
