"""Nine hostile sandboxes beside honest ones, which start, reach a server and stop with no error and little delay."""

import socket
import statistics
import threading
import time
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from sandboxkit import Egress, SandboxError, Session
from tests.chaos._census import census, growth
from tests.docker_here import require_docker
from tests.egress.conftest import PROGRAMS, opened

HOSTILE: dict[str, str] = tomllib.loads(Path(__file__).with_name("hostile.toml").read_text())
_SLOWER, _SLACK = 10.0, 3.0
"""An honest visit may take so many times as long as alone, and so many seconds more: they share two processors."""


@dataclass(slots=True)
class Beside:
    """How long (s) honest visits took, alone and beside hostile sandboxes, and what went wrong."""

    alone: float = 0.0
    beside: list[float] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        usual, worst = statistics.median(self.beside or [0]), max(self.beside, default=0)
        return f"{len(self.beside)} visits of {usual:.2f} s, the longest {worst:.1f} s, alone {self.alone:.2f} s"


def _visit(session: Session, url: str) -> float:
    """Start a sandbox, reach the server from it and stop it."""
    began = time.monotonic()
    done = session.run(["python3", "-c", PROGRAMS["get"], url], timeout=60, check=True).result(120)
    assert done.stdout == "origin:/:\n"
    return time.monotonic() - began


def run(provider: str, seconds: float) -> Beside:
    """Let hostile sandboxes do all that they can for so many seconds, and visit a server meanwhile."""
    found, gate, real = Beside(), threading.Event(), socket.getaddrinfo

    def slow(host: str, *more: Any, **options: Any) -> list[Any]:
        if str(host).endswith(".slow.test"):
            gate.wait(15)
            raise socket.gaierror(socket.EAI_AGAIN, "no answer")
        return list(real(host, *more, **options))

    def attack(code: str) -> None:
        with hostile.sandbox() as sandbox:
            while not gate.is_set():
                try:
                    process = sandbox.exec(["python3", "-c", code], timeout=30)
                    while not process.done() and not gate.wait(0.2):
                        pass
                    process.kill()
                    process.exception(60)
                except SandboxError as error:
                    found.wrong.append(repr(error))  # its infrastructure fails for no program

    with opened() as quick, socket.create_server(("127.0.0.1", 0), backlog=2000) as silent:
        web, mute = f"web.test:{quick.port}", f"web.test:{silent.getsockname()[1]}"
        network = Egress(
            [web, mute, "*.slow.test"], private=["127.0.0.1"], hosts={"web.test": "127.0.0.1"}
        )
        limits: Any = {"memory_mb": 256, "pids": 64, "cpus": 0.2}
        limits |= {"disk_mb": 64, "profile": "strict"}
        with (
            mock.patch("socket.getaddrinfo", slow),
            Session(provider, network=network) as honest,
            Session(provider, network=network, **limits) as hostile,
        ):
            hostile.run(["true"]).result(120)
            found.alone = max([_visit(honest, f"http://{web}/") for _ in range(4)][1:])
            before = census()
            threads = [
                threading.Thread(target=attack, args=[code.replace("SILENT", mute)])
                for code in HOSTILE.values()
            ]
            for each in threads:
                each.start()
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                try:
                    found.beside.append(_visit(honest, f"http://{web}/"))
                    assert found.beside[-1] < _SLOWER * found.alone + _SLACK
                except (SandboxError, AssertionError) as error:
                    found.wrong.append(f"an honest visit: {error!r}")
            gate.set()
            for each in threads:
                each.join()
            found.wrong += [f"left: {what}" for what in growth(before)]
    return found


@pytest.mark.parametrize(
    ("provider", "seconds"),
    [
        ("local", 2),
        *[pytest.param(each, 60, marks=pytest.mark.nightly) for each in ("local", "docker")],
    ],
)
def test_honest_sandboxes_work_beside_hostile_ones(provider: str, seconds: float) -> None:
    if provider == "docker":
        require_docker()
    found = run(provider, seconds)
    assert found.wrong == [], str(found)
    assert found.beside
