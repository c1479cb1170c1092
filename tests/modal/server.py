"""Modal for the tests: its emulator, its words and limits."""

import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

from sandboxkit.providers._hosted.baking import BakingProvider
from sandboxkit.providers.modal import ModalProvider
from tests.emulators._answers import Row
from tests.emulators.modal.client import ModalEmulator
from tests.hosted.vendor import Answer, Vendor

__all__ = ["Modal", "ModalServer"]

ROOT = Path(__file__).resolve().parents[2]
FEW = ("status", "http", "reset", "stall")


class ModalServer(ModalEmulator):
    """The emulator, with the names that the shared tests have for what it does."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        super().__init__(process)
        self._seen: Counter[str] = Counter()

    def clear(self) -> None:
        """Take back all faults, and forget the calls."""
        self.ask("calm")
        self.ask("skew", seconds=0.0)
        self.ask("calls")
        self._seen.clear()

    def kill_sandboxes(self) -> None:
        """End all sandboxes."""
        for sandbox_id in self.running():
            self.ask("end", sandbox_id=sandbox_id)

    def break_connections(self) -> None:
        """Abort all connections; the workers know the programs that they carried."""
        self.ask("cut")

    def forget(self) -> None:
        """Abort all connections, and let the workers forget the programs that they carried."""
        self.ask("forget")

    @property
    def alive(self) -> list[str]:
        """The running sandboxes."""
        return self.running()

    @property
    def requests(self) -> list[str]:
        """The calls since `clear`, in no order."""
        self._seen.update(self.ask("calls"))
        return list(self._seen.elements())

    @property
    def violations(self) -> list[str]:
        """The calls that Modal does not know."""
        found: list[str] = self.ask("violations")
        return found


class Modal(Vendor):
    """Modal, whose SDK repeats calls and keeps its own connections."""

    name = "modal"
    timeout = 2.5
    starts = frozenset({"create", "agent"})
    on_the_way: ClassVar = {
        "AppGetOrCreate": FEW,
        "ImageGetOrCreate": FEW,
        "AuthTokenGet": FEW,
        "SandboxCreateV2": (*FEW, "drop", "silent", "garbage"),
        "TaskExecStart": (*FEW, "silent", "garbage"),
    }
    lost = ("drop", "silent", "garbage")
    stops = ("reset", "stall")  # the SDK asks again by itself, and finds that it has ended
    broken = (*FEW, "drop", "silent", "garbage")
    statuses: ClassVar = {
        "status": {"status": "UNAVAILABLE", "message": "no healthy upstream"},
        "http": {"status": 502, "message": "<html>Bad Gateway</html>"},
    }
    throttled: ClassVar = {
        "status": "RESOURCE_EXHAUSTED",
        "message": "slow down",
        "retry_after": 1.0,
    }
    pages = 4
    wrong_key = ("MODAL_TOKEN_SECRET", "as-wrong")
    nowhere = ("MODAL_SERVER_URL", "http://127.0.0.1:9")
    variables = (
        ("MODAL_TOKEN_ID", None, "MODAL_TOKEN_ID"),
        ("MODAL_TOKEN_SECRET", None, "MODAL_TOKEN_SECRET"),
        ("MODAL_TOKEN_ID", "as-swapped", "MODAL_TOKEN_ID"),
        ("MODAL_TOKEN_SECRET", "ak-swapped", "MODAL_TOKEN_SECRET"),
        ("MODAL_TOKEN_ID", "ak-line\nbreak", "MODAL_TOKEN_ID"),
        ("MODAL_TOKEN_SECRET", "as-ümlaut", "MODAL_TOKEN_SECRET"),
        ("MODAL_SERVER_URL", "api.modal.com", "MODAL_SERVER_URL"),
    )
    options = (
        ("lifetime", None),
        ("lifetime", 24 * 3600 + 1),
        ("pids", 64),
        ("disk_mb", 100),
        ("tag", {"tags": {"a/" * 31 + "a": "1"}}),
    )
    images = (
        ("registry.example/no-such-image:1", "no-such-image"),
        ("im-nothing", "im-nothing"),
    )
    breaks = ("break_connections", "forget")
    lists_snapshots = False

    @contextmanager
    def emulator(self, *options: str) -> Iterator[ModalServer]:
        command = [sys.executable, "-m", "tests.emulators.modal", *options]
        with subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as process:
            yield ModalServer(process)

    def environment(self, server: ModalServer) -> Mapping[str, str]:
        keys = {"MODAL_TOKEN_ID": "ak-emulator", "MODAL_TOKEN_SECRET": "as-emulator"}
        return {"MODAL_SERVER_URL": server.url, **keys}

    def provider(self, timeout: float | None = None, **options: Any) -> BakingProvider[Any]:
        seconds = timeout or self.timeout
        return ModalProvider(timeout=seconds, build_timeout=seconds, **options)

    def row(self, answer: Answer) -> Row:
        policy = ""
        if answer.retry_after is not None:
            policy = f" with a retry policy of {answer.retry_after:g} s"
        text = f"{answer.status}{policy}: `{answer.body}`"
        return Row(answer.calls, text, answer.raised, answer.retry_after)

    def refuse(self, server: ModalServer, call: str, answer: Answer, times: int) -> None:
        rule: dict[str, Any] = {"status": answer.status, "message": answer.body}
        if answer.retry_after is not None:
            rule["retry_after"] = answer.retry_after
        kind = "http" if isinstance(answer.status, int) else "status"
        server.fault(self.requests[call], kind, **rule)

    def fill(self, server: ModalServer, sandboxes: int) -> None:
        rule = {"status": "RESOURCE_EXHAUSTED", "message": f"limit of {sandboxes} sandboxes"}
        server.fault("SandboxCreateV2", "status", skip=sandboxes, times=1, **rule)
