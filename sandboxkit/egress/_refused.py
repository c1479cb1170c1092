"""The refusal of a connection, within the proxy."""


class EgressRefusedError(Exception):
    """A request is refused: the status (HTTP) of the answer, and the reason for the record."""

    def __init__(self, status: int, reason: str, told: str | None = None) -> None:
        """`told` is what the sandbox is told, if the reason has what it must not know."""
        super().__init__(reason)
        self.status, self.reason = status, reason
        self.told = reason if told is None else told
