"""A local sandbox whose agent is stopped: file calls may be tried again, and its end leaves no state.

The contract checks all other calls in tests/conformance: what runs has an unknown outcome, and never timed out.
"""

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from sandboxkit import Operation, Session
from sandboxkit.errors import ProviderUnavailableError

WITHIN = 60.0
"""Seconds, on a busy machine too, in which what would otherwise wait for ever is known."""


def test_calls_to_a_stopped_agent_are_unavailable_and_its_sandbox_is_stopped(state: Path) -> None:
    with Session(provider="local") as session:
        sandbox = session.sandbox().start().result(60)
        assert sandbox.id is not None
        *_, agent = json.loads((state / sandbox.id / "meta.json").read_text())["processes"]
        os.kill(int(agent), signal.SIGSTOP)
        calls: list[Operation[Any]] = [
            sandbox.read_file("/etc/passwd"),
            sandbox.write_file("/tmp/x", b"x" * 3_000_000),
            sandbox.list_dir("/"),
        ]
        end = time.monotonic() + WITHIN
        for call in calls:
            with pytest.raises(ProviderUnavailableError):
                call.result(end - time.monotonic())
        os.kill(int(agent), signal.SIGCONT)
        assert sandbox.read_file("/etc/passwd").result(30)
        os.kill(int(agent), signal.SIGSTOP)
        sandbox.stop().result(WITHIN)
    assert os.listdir(state) == []
