"""What the shared tests of hosted vendors have to know of each: its emulator, words, limits and faults."""

import json
import time
import tomllib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from sandboxkit import Sandbox, SandboxError, errors
from sandboxkit.providers._hosted.agent import ProgramStream
from sandboxkit.providers._hosted.baking import BakingProvider
from tests.emulators._answers import Row

__all__ = ["Answer", "Vendor", "eventually"]

ROOT = Path(__file__).parents[2]


def eventually(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    """Return when it holds; fail when it never does."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer in the place of a success; the files `answers.toml` have them."""

    calls: tuple[str, ...]
    status: int | str
    """Of HTTP; a name is that of gRPC."""
    body: str
    raised: type[SandboxError] | None = None
    kind: str = "json"
    headers: Mapping[str, str] = field(default_factory=dict)
    retry_after: float | None = None

    @property
    def content_type(self) -> str:
        """What `kind` stands for."""
        return {
            "json": "application/json; charset=utf-8",
            "html": "text/html",
            "text": "text/plain; charset=utf-8",
        }[self.kind]


class Vendor(ABC):
    """One vendor and its emulator."""

    name: ClassVar[str]
    timeout: ClassVar[float] = 2.0
    """Seconds that the provider of these tests gives the vendor for an answer."""
    private_errors: ClassVar[Mapping[str, type[SandboxError]]] = {}
    starts: ClassVar[frozenset[str]]
    """The calls of `answers.toml` that are made while a sandbox starts."""
    on_the_way: ClassVar[Mapping[str, tuple[str, ...]]]
    """The requests of a start, each with the kinds of faults of it that are tried."""
    lost: ClassVar[tuple[str, ...]]
    """The kinds of faults of a creation that is made although its answer is lost."""
    broken: ClassVar[tuple[str, ...]] = ("reset", "drop", "stall", "stall_body", "reset_mid_body")
    """The kinds of faults of a listing."""
    stops: ClassVar[tuple[str, ...]] = ("reset", "drop", "stall")
    """The kinds of faults of a stop that are errors."""
    statuses: ClassVar[Mapping[str, Mapping[str, Any]]] = {"status": {"status": 500}}
    """The options of the kinds of faults that need some."""
    throttled: ClassVar[Mapping[str, Any]]
    """The fault of a creation that is to be tried again in a second."""
    pages: ClassVar[int] = 3
    """The requests of a listing of seven sandboxes."""
    wrong_key: ClassVar[tuple[str, str]]
    """A variable, and a value that the vendor refuses."""
    nowhere: ClassVar[tuple[str, str]]
    """A variable, and an address at which nobody listens."""
    patience: ClassVar[float | None] = None
    """The timeout with which a connection is known to be refused; None: `timeout`."""
    variables: ClassVar[tuple[tuple[str, str | None, str], ...]]
    """Variables of the environment, values that cannot work, and what the error names."""
    options: ClassVar[tuple[tuple[str, object], ...]]
    """Options of a sandbox that the vendor lacks, which the error names."""
    images: ClassVar[tuple[tuple[str, str], ...]]
    """Images that do not exist, and what the error says."""
    lifetimes: ClassVar[tuple[tuple[float | None, float], ...]] = ()
    """Lifetimes that are asked for, and the seconds that the vendor is asked for."""
    breaks: ClassVar[tuple[str, ...]] = ("break_connections",)
    """The ways in which connections break."""
    streams: ClassVar[tuple[str, ...]] = ("stream",)
    """The ways in which a program's input goes."""
    lists_snapshots: ClassVar[bool] = True
    """Whether another machine can list snapshots and see when each expires."""
    strict: ClassVar[Mapping[str, Any] | None] = None
    """The options of a strict sandbox at an emulator whose machines have root."""

    @abstractmethod
    def emulator(self, *options: str) -> AbstractContextManager[Any]:
        """Run the emulator; `environment` leads to it. Any: each vendor's is of a kind of its own."""

    @abstractmethod
    def environment(self, server: Any) -> Mapping[str, str]:
        """The variables that lead the vendor's SDK to the emulator."""

    @abstractmethod
    def provider(self, timeout: float | None = None, **options: Any) -> BakingProvider[Any]:
        """A provider that is not patient, or as patient as it says."""

    @property
    def requests(self) -> Mapping[str, str]:
        """The request of each call."""
        found: Mapping[str, str] = self._file["requests"]
        return found

    @property
    def answers(self) -> list[Answer]:
        """The recorded answers."""
        return [
            Answer(**{**each, "calls": tuple(each["calls"]), "raised": self._class(each)})
            for each in self._file["answer"]
        ]

    def row(self, answer: Answer) -> Row:
        """An answer's line in the vendor's document."""
        headers = "".join(f" `{name}: {value}`" for name, value in answer.headers.items())
        body = f"`{_shown(answer.body)}`" if answer.body else "nothing"
        kind = answer.content_type.partition(";")[0]
        text = f"{answer.status} {kind}{headers}: {body}"
        return Row(answer.calls, text, answer.raised, answer.retry_after)

    def rows(self) -> list[Row]:
        """All lines of the vendor's document."""
        return [self.row(answer) for answer in self.answers]

    def refuse(self, server: Any, call: str, answer: Answer, times: int) -> None:
        """Let the emulator give an answer."""
        server.fault(
            self.requests[call],
            "status",
            times=times,
            status=answer.status,
            body=answer.body,
            headers={"content-type": answer.content_type, **answer.headers},
        )

    def fault(self, server: Any, request: str, kind: str, **options: Any) -> None:
        """Plan a fault of a kind."""
        server.fault(request, kind, **{**self.statuses.get(kind, {}), **options})

    def fill(self, server: Any, sandboxes: int) -> None:
        """Let the account have room for no more sandboxes."""
        raise NotImplementedError

    async def run(
        self,
        provider: BakingProvider[Any],
        sandbox: Sandbox,
        argv: tuple[str, ...],
        stream: str,
    ) -> ProgramStream:
        """Run a program whose input goes as `stream` says."""
        started: ProgramStream = await provider._run(str(sandbox.id), argv)
        return started

    @property
    def document(self) -> Path:
        """Where the answers are described."""
        return ROOT / "providers" / self.name / "ANSWERS.md"

    @property
    def _file(self) -> dict[str, Any]:
        path = ROOT / "tests" / self.name / "answers.toml"
        return tomllib.loads(path.read_text())

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
