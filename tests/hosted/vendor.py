"""What the shared tests of hosted vendors have to know of each: its emulator, words, limits and faults."""

import functools
import json
import os
import time
import tomllib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar
from unittest import mock

from sandboxkit import Sandbox, SandboxError, errors
from sandboxkit.providers._hosted.agent import ProgramStream
from sandboxkit.providers._hosted.vendor import VendorProvider
from tests.emulators._answers import Row
from tests.emulators._server import Server

__all__ = ["Answer", "Vendor", "eventually"]

ROOT = Path(__file__).parents[2]


def eventually(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    """Return when it holds; fail when it never does."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


Answer = SimpleNamespace
"""One answer in the place of a success: `calls`, `status`, `body`, `raised`, `kind`, `headers`, `retry_after`.

The files `answers.toml` have them. A status that is a name is that of gRPC.
"""
_DEFAULTS: dict[str, Any] = {"kind": "json", "headers": {}, "retry_after": None}
_JSON = "application/json; charset=utf-8"
_KINDS = {"html": "text/html", "text": "text/plain; charset=utf-8", "json": _JSON}


class Vendor(ABC):
    """One vendor and its emulator."""

    name: ClassVar[str]
    timeout: ClassVar[float] = 2.0
    """Seconds that the provider of these tests gives the vendor for an answer."""
    private_errors: ClassVar[Mapping[str, type[SandboxError]]] = {}

    @functools.cached_property
    def _words(self) -> dict[str, Any]:
        folder = ROOT / "tests" / self.name
        files = Path(__file__).with_suffix(".toml"), folder / "vendor.toml", folder / "answers.toml"
        return dict(each for file in files for each in tomllib.loads(file.read_text()).items())

    # Any: each entry is of a type of its own.
    def __getattr__(self, name: str) -> Any:
        """Return what the vendor's files say, or what is common to all."""
        try:
            return self._words[name]
        except KeyError:
            raise AttributeError(name) from None

    def emulator(self, *options: str) -> Server:
        return Server(f"tests.emulators.{self.name}", *options)

    @contextmanager
    def running(self, *options: str) -> Iterator[Server]:
        """Run the emulator under the variables that lead the SDK to it; at the end nothing may be left or wrong."""
        with (
            self.emulator(*options) as server,
            mock.patch.dict(os.environ, self.environment(server)),
        ):
            yield server
            assert server.violations == []
            assert server.alive == []

    @abstractmethod
    def environment(self, server: Server) -> Mapping[str, str]:
        """The variables that lead the vendor's SDK to the emulator."""

    @abstractmethod
    def provider(self, timeout: float | None = None, **options: Any) -> VendorProvider[Any, Any]:
        """A provider that is not patient, or as patient as it says."""

    @property
    def answers(self) -> list[Answer]:
        found = [_DEFAULTS | each | {"raised": self._class(each)} for each in self.answer]
        return [Answer(**each | {"kind": _KINDS[each["kind"]]}) for each in found]

    def row(self, answer: Answer) -> Row:
        headers = "".join(f" `{name}: {value}`" for name, value in answer.headers.items())
        body = f"`{_shown(answer.body)}`" if answer.body else "nothing"
        kind = answer.kind.partition(";")[0]
        text = f"{answer.status} {kind}{headers}: {body}"
        return Row(tuple(answer.calls), text, answer.raised, answer.retry_after)

    def rows(self) -> list[Row]:
        return [self.row(answer) for answer in self.answers]

    def refuse(self, server: Any, call: str, answer: Answer, times: int) -> None:
        headers = {"content-type": answer.kind, **answer.headers}
        details = {"status": answer.status, "body": answer.body, "headers": headers}
        server.fault(self.requests[call], "status", times=times, **details)

    def fault(self, server: Any, request: str, kind: str, **options: Any) -> None:
        server.fault(request, kind, **{**self.statuses.get(kind, {}), **options})

    def fill(self, server: Any, sandboxes: int) -> None:
        """Let the account have room for no more sandboxes."""
        raise NotImplementedError

    async def run(
        self,
        provider: VendorProvider[Any, Any],
        sandbox: Sandbox,
        argv: tuple[str, ...],
        stream: str,
    ) -> ProgramStream:
        """Run a program whose input goes as `stream` says."""
        started: ProgramStream = await provider.box(str(sandbox.id))._run(argv)
        return started

    @property
    def document(self) -> Path:
        return ROOT / "providers" / self.name / "ANSWERS.md"

    def _class(self, answer: Mapping[str, Any]) -> type[SandboxError] | None:
        name = answer.get("raised", "")
        found: type[SandboxError] | None = getattr(errors, name, self.private_errors.get(name))
        assert found or not name
        return found


def _shown(body: str) -> str:
    """A body without what is the same in all of a vendor's."""
    try:
        kept = dict(json.loads(body).items())
    except (ValueError, AttributeError):
        return body
    for name in ("path", "timestamp", "statusCode"):
        kept.pop(name, None)
    return json.dumps(kept)
