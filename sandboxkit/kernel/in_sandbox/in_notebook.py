"""Patches for ipykernel: printed output goes to pipes, and stays in order with display messages."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from typing import Any

from sandboxkit.kernel.in_sandbox.pipe import (
    PipeWriter,
    read_before_children,
    text_of,
    wait_until_read,
)

SHOWN = ("display_data", "execute_result", "update_display_data")


class DisplayCredits:
    """Counts display messages that the holder has not acknowledged; it writes a byte for each."""

    def __init__(self, acknowledged: int) -> None:
        self.acknowledged, self.process = acknowledged, os.getpid()
        self.waiting = 0

    def unread(self) -> int:
        if os.getpid() != self.process:
            return 0
        with contextlib.suppress(OSError):
            self.waiting -= len(os.read(self.acknowledged, 4096))
        return self.waiting


def plain(value: Any) -> Any:
    """Return a list or dict that JSON can represent; None for any other value."""
    with contextlib.suppress(Exception):
        if json.loads(json.dumps(value, allow_nan=False)) == value:
            return value
    return None


def set_up(shell: Any, acknowledged: int) -> None:
    """Apply the patches to the IPython shell. Idempotent. The holder acknowledges on `acknowledged`."""
    if getattr(sys.stdout, "buffer", None).__class__.__name__ == PipeWriter.__name__:
        return
    os.set_inheritable(acknowledged, False)
    for kind in (dict, list):
        shell.display_formatter.formatters["application/json"].for_type(kind, plain)
    shows, out, err = DisplayCredits(acknowledged), PipeWriter(1), PipeWriter(2)
    out.others, err.others = [err, shows], [out, shows]
    read_before_children([out, err, shows])
    sys.stdout, sys.stderr = text_of(out), text_of(err)
    session = shell.kernel.session
    send = session.send

    def in_order(stream: Any, message: Any, *args: Any, **options: Any) -> Any:
        kind = message.get("msg_type") if isinstance(message, dict) else message
        if kind not in SHOWN:
            return send(stream, message, *args, **options)
        wait_until_read([out, err])
        sent = send(stream, message, *args, **options)
        shows.waiting += 1
        return sent

    session.send = in_order
    with contextlib.suppress(Exception):
        import ctypes

        flush = ctypes.CDLL(None).fflush
        shell.events.register("post_run_cell", lambda result: flush(None))
