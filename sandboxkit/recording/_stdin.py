"""ReplayedInput: compares the input of a replayed command with the recorded input."""

import re
from collections.abc import AsyncIterable
from typing import Self

from sandboxkit.errors import ReplayMismatchError
from sandboxkit.recording._content import Secrets
from sandboxkit.recording._script import Renames
from sandboxkit.types import PtySize, StdinItem

_DIGITS = re.compile(rb"[0-9a-f]")


class ReplayedInput:
    """Reads a command's input and compares it. Use it in an `async with` block."""

    def __init__(
        self, items: AsyncIterable[StdinItem] | None, secrets: Secrets, renames: Renames
    ) -> None:
        self._items = None if items is None else aiter(items)
        self._secrets, self._renames = secrets, renames
        self._buffer = b""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        close = getattr(self._items, "aclose", None)
        if close is not None:
            await close()

    async def expect(self, recorded: bytes) -> None:
        """Read as many bytes as were recorded. Raises ReplayMismatchError if they differ."""
        while len(self._buffer) < len(recorded) and self._alike(recorded):
            if not await self._read():
                break
        now, self._buffer = self._buffer[: len(recorded)], self._buffer[len(recorded) :]
        masked = self._secrets.mask(now)
        if masked == recorded:
            return
        if not self._renames.same(recorded.decode("latin-1"), masked.decode("latin-1")):
            raise ReplayMismatchError(
                f"a command's input differs from the recording: recorded {recorded[:160]!r}, now "
                f"{masked[:160]!r}; make a new recording if the program has changed"
            )

    async def expect_end(self) -> None:
        """Read to the end of the input. Raises ReplayMismatchError if more comes."""
        while not self._buffer and await self._read():
            pass
        if self._buffer:
            raise ReplayMismatchError(
                "a command's input is longer than in the recording: it goes on with "
                f"{self._secrets.mask(self._buffer)[:160]!r}"
            )

    def _alike(self, recorded: bytes) -> bool:
        # The buffer may end within a token, so tokens are compared by their shape only.
        now = self._secrets.mask(self._buffer)
        return _DIGITS.sub(b"0", now) == _DIGITS.sub(b"0", recorded[: len(now)])

    async def _read(self) -> bool:
        if self._items is None:
            return False
        try:
            item = await anext(self._items)
        except StopAsyncIteration:
            return False
        if not isinstance(item, PtySize):
            self._buffer += item
        return True
