"""The exception by which the proxy refuses a request."""


class EgressRefusedError(Exception):
    """A request was refused. `status` is the HTTP status of the response, `reason` the text in the record."""

    def __init__(self, status: int, reason: str, shown: str | None = None) -> None:
        """`shown` is the text that the sandbox receives if `reason` contains facts to hide from it."""
        super().__init__(reason)
        self.status, self.reason = status, reason
        self.shown = reason if shown is None else shown
