"""A bounded buffer of a cell's output: the head can be sent at once, the tail at the end of the cell."""

from __future__ import annotations

import codecs
import json
from collections import deque
from typing import Any

COST = 64
"""Overhead (bytes) that each item counts against the limit."""
STREAMS = ("stdout", "stderr")


class OutputBuffer:
    """Output in order of arrival: the first and the last `limit / 2` bytes; the middle is dropped."""

    def __init__(self, limit: int) -> None:
        self.half = self.room = limit // 2
        self.tail: deque[tuple[str, bytes]] = deque()
        self.tail_size, self.dropped = 0, False
        self.ready: list[tuple[str, bytes]] = []
        make = codecs.getincrementaldecoder("utf-8")
        self.decoders = {name: make("replace") for name in STREAMS}

    def printed(self, stream: str, data: bytes) -> None:
        """Add bytes printed on `stream`."""
        if self.tail or len(data) > self.room:
            head, data = (b"", data) if self.tail else (data[: self.room], data[self.room :])
            if head:
                self._head(stream, head)
            self.room = 0
            self._late(stream, data)
        elif data:
            self._head(stream, data)

    def shown(self, kind: str, data: dict[str, Any], cut: bool) -> None:
        """Add a displayed value, a MIME bundle; keep only its plain text if it exceeds half the limit.

        `cut`: the kernel has already shortened it.
        """
        self.dropped = self.dropped or cut
        text = json.dumps(data).encode()
        if len(text) + COST > self.half:
            self.dropped = True
            plain = str(data.get("text/plain", ""))[: self.half // 8]
            text = json.dumps({"text/plain": plain}).encode()
        if self.tail or len(text) + COST > self.room:
            self.room = 0
            self._late(kind, text)
        else:
            self.room -= len(text) + COST
            self.ready.append((kind, text))

    def take(self) -> list[list[Any]]:
        """Remove and return the items to send now: pairs of a kind and a text or MIME bundle."""
        items: list[list[Any]] = []
        for kind, data in self.ready:
            if kind not in STREAMS:
                items.append([kind, json.loads(data)])
            elif text := self.decoders[kind].decode(data):
                items.append([kind, text])
        self.ready = []
        return items

    def finish(self) -> list[list[Any]]:
        """Return all remaining items, at the end of the cell."""
        self.ready.extend(self.tail)
        items = self.take()
        for name, decoder in self.decoders.items():
            if text := decoder.decode(b"", final=True):
                items.append([name, text])
        return items

    def _head(self, stream: str, data: bytes) -> None:
        if self.ready and self.ready[-1][0] == stream:
            self.ready[-1] = (stream, self.ready[-1][1] + data)
            self.room -= len(data)
        else:
            self.ready.append((stream, data))
            self.room = max(0, self.room - len(data) - COST)

    def _late(self, kind: str, data: bytes) -> None:
        if not data:
            return
        if kind in STREAMS and self.tail and self.tail[-1][0] == kind and len(data) < 4096:
            last = self.tail.pop()[1]
            if len(last) < 65536:
                data = last + data
                self.tail_size -= len(last) + COST
            else:
                self.tail.append((kind, last))
        self.tail.append((kind, data))
        self.tail_size += len(data) + COST
        while self.tail_size > self.half:
            self.dropped = True
            first, oldest = self.tail.popleft()
            self.tail_size -= len(oldest) + COST
            rest = oldest[len(oldest) - (self.half - self.tail_size - COST) :]
            if first in STREAMS and 0 < len(rest) < len(oldest):
                self.tail.appendleft((first, rest))
                self.tail_size += len(rest) + COST
