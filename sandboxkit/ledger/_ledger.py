"""The ledger of this process: collects what its sandboxes use, and adds it to the user's file."""

import asyncio
import logging
import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path

import anyio

from sandboxkit import _tags
from sandboxkit._life import _exit
from sandboxkit._operation import Operation
from sandboxkit.errors import ConfigurationError
from sandboxkit.ledger._amounts import Amounts
from sandboxkit.ledger._meter import SandboxMeter
from sandboxkit.ledger._store import OTHER, VARIABLE, LedgerFile, RowKey, ledger_path
from sandboxkit.provider import Box
from sandboxkit.types import SandboxSpec

_log = logging.getLogger("sandboxkit")

_WRITE_SECONDS = 1.0
"""How long (s) amounts are collected before they are written."""
_TICK = 0.1
_LONGEST_PAUSE = 60.0
_AT_ONCE = 16
_ROWS = 10_000
"""How many combinations of day, provider and tags are kept in memory while the file cannot be written."""
_WAIT_SECONDS = 0.2
"""How long (s) one attempt waits for other writers."""
_CLOSE_ATTEMPTS = 25
"""How often the end of the process tries to write while others write."""


class Ledger:
    """Collects amounts and writes them once a second, in a worker thread; used on the background loop.

    An error of the file never reaches a sandbox: it is logged once, the amounts are kept and tried
    again, and what the process could not write by its end is lost.
    """

    def __init__(self, file: LedgerFile) -> None:
        self.file = file
        self._meters: set[SandboxMeter] = set()
        self._pending: dict[RowKey, Amounts] = {}
        self._writing: asyncio.Task[None] | None = None
        self._reader: asyncio.Task[None] | None = None
        self._one = anyio.Lock()
        self._error: Exception | None = None
        self._busy = self._warned = False

    def begin(self, spec: SandboxSpec, box: Box) -> SandboxMeter:
        """Return the meter of a sandbox that was just created; it is read until its end."""
        import json

        tags = json.dumps(_tags.public(spec.tags), sort_keys=True, ensure_ascii=False)

        def charge(amounts: Amounts) -> None:
            day = time.strftime("%Y-%m-%d", time.gmtime())
            self._add(RowKey(day, box.provider.name, tags), amounts)
            if self._writing is None or self._writing.done():
                self._writing = asyncio.create_task(self._write_soon())

        meter = SandboxMeter(spec, box, charge, self._meters.discard)
        self._meters.add(meter)
        if self._reader is None or self._reader.done():
            self._reader = asyncio.create_task(self._read())
        return meter

    def _add(self, key: RowKey, amounts: Amounts) -> None:
        if key not in self._pending and len(self._pending) >= _ROWS:
            key = key._replace(tags=OTHER)
        self._pending.setdefault(key, Amounts()).add(amounts)

    async def _read(self) -> None:
        """Read the meters that are due, until there are none."""
        limiter = anyio.CapacityLimiter(_AT_ONCE)

        async def read(meter: SandboxMeter) -> None:
            async with limiter:
                await meter.read()

        while self._meters:
            now = time.monotonic()
            due = [meter for meter in self._meters if meter.due <= now]
            if due:
                async with anyio.create_task_group() as group:
                    for meter in due:
                        group.start_soon(read, meter)
            else:
                soonest = min(meter.due for meter in self._meters)
                await anyio.sleep(max(soonest - now, _TICK))

    async def _write_soon(self) -> None:
        pause = _WRITE_SECONDS
        while self._pending:
            await anyio.sleep(pause)
            written = await self._write()
            pause = _WRITE_SECONDS if written else min(2 * pause, _LONGEST_PAUSE)

    async def aclose(self) -> None:
        """Write what is left, as the process ends. What cannot be written is tried again while it lives."""
        for _ in range(_CLOSE_ATTEMPTS):
            if await self._write() or not self._busy:
                break
        if self._pending:
            self._warn("it is tried again while this process lives")

    async def _write(self) -> bool:
        """Write what is pending; return whether the file has it now."""
        async with self._one:
            rows, self._pending = self._pending, {}
            if not rows:
                return True
            try:
                await anyio.to_thread.run_sync(_add, self.file, rows)
            except Exception as error:  # noqa: BLE001 - no sandbox may fail for it; it is logged
                for key, amounts in rows.items():
                    self._add(key, amounts)
                # SQLITE_BUSY: others write
                self._busy = getattr(error, "sqlite_errorcode", 0) & 0xFF == 5
                self._error = error
                if not self._busy:
                    self._warn("it is tried again")
                return False
            self._warned = False
            return True

    def _warn(self, further: str) -> None:
        if not self._warned:
            self._warned = True
            _log.warning(
                "what sandboxes used cannot be written to the ledger %s: %s; %s. %s=off turns it off",
                self.file.path,
                self._error,
                further,
                VARIABLE,
            )


_lock = threading.Lock()
"""Held while SQLite works: in a child that is forked meanwhile, SQLite's own locks would stay locked."""
_FORK_SECONDS = 1.0
"""How long (s) a fork waits for it; a file system that hangs must not stop the program."""
_forking = threading.local()
"""`held`: whether the thread that forks has the lock."""
_ledgers: dict[Path, Ledger] = {}


def of_process() -> Ledger | None:
    """Return the ledger of this process; None if it is turned off, or its place cannot be used."""
    try:
        path = ledger_path()
    except ConfigurationError as error:
        _log.warning("what sandboxes use is not written down: %s", error)
        return None
    if path is None:
        return None
    if path not in _ledgers:
        _ledgers[path] = Ledger(LedgerFile(path))
        _exit.register_backend(_ledgers[path])
    return _ledgers[path]


def flush() -> Operation[None]:
    """Write now what the sandboxes of this process have used; otherwise it takes a second, or its end."""

    async def write() -> None:
        for ledger in tuple(_ledgers.values()):
            await ledger.aclose()

    return Operation(write())


def _add(file: LedgerFile, rows: Mapping[RowKey, Amounts]) -> None:
    with _lock:
        file.add(rows, seconds=_WAIT_SECONDS)


def _before_fork() -> None:
    _forking.held = _lock.acquire(timeout=_FORK_SECONDS)


def _after_fork_in_parent() -> None:
    if _forking.held:
        _lock.release()


def _after_fork() -> None:
    # What is pending, and what is measured, is the parent's.
    global _lock
    _lock = threading.Lock()
    _ledgers.clear()


os.register_at_fork(
    before=_before_fork,
    after_in_parent=_after_fork_in_parent,
    after_in_child=_after_fork,
)
