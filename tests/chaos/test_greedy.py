"""Greedy sandboxes beside honest ones, which start, reach a server and stop with no error and little delay.

python -m tests.chaos.test_greedy PROVIDER,... SECONDS
"""

import socket
import statistics
import sys
import threading
from typing import Any

import pytest

from sandboxkit import Egress, SandboxError, Session
from tests.chaos._census import census, growth, visits
from tests.data_here import beside
from tests.docker_here import require_docker
from tests.egress.conftest import PROGRAMS, opened, slow_names

GREEDY: dict[str, str] = beside(__file__, "greedy.toml")
LIMITS: Any = {"memory_mb": 256, "pids": 64, "cpus": 0.2, "disk_mb": 64, "profile": "strict"}
_SLOWER, _SLACK = 10.0, 3.0
"""An honest visit may take so many times as long as alone, and so many seconds more: they share the processors."""


def run(provider: str, seconds: float) -> tuple[str, list[str]]:
    """Let greedy sandboxes do what they can for so long; return how long honest visits took, and what was wrong."""
    wrong = list[str]()

    def visit() -> None:
        argv = ["python3", "-c", PROGRAMS["get"], f"http://{web}/"]
        assert honest.run(argv, timeout=60, check=True).result(120).stdout == "origin:/:\n"

    def attack(code: str) -> None:
        with greedy.sandbox() as sandbox:
            while not gate.is_set():
                process = sandbox.exec(["python3", "-c", code.replace("SILENT", mute)], timeout=30)
                while not process.done() and not gate.wait(0.2):
                    pass
                process.kill()
                if not isinstance(error := process.exception(60), SandboxError | None):
                    wrong.append(repr(error))

    with opened() as quick, socket.create_server(("127.0.0.1", 0), backlog=2000) as silent:
        web, mute = f"web.test:{quick.port}", f"web.test:{silent.getsockname()[1]}"
        hosts = {"web.test": "127.0.0.1"}
        network = Egress([web, mute, "*.slow.test"], private=["127.0.0.1"], hosts=hosts)
        with Session(provider, network=network, **LIMITS) as first:
            first.run(["true"]).result(120)
        before = census()
        with (
            slow_names(15) as (gate, _),
            Session(provider, network=network) as honest,
            Session(provider, network=network, **LIMITS) as greedy,
        ):
            visit()
            alone = visits(visit, 2, wrong)[-1]
            threads = [threading.Thread(target=attack, args=[code]) for code in GREEDY.values()]
            for each in threads:
                each.start()
            took = visits(visit, seconds, wrong)
            gate.set()
            for each in threads:
                each.join()
        wrong += [f"left: {what} ({n} more)" for what, n in growth(before).items()]
    usual, longest = statistics.median(took), took[-1]
    if longest > _SLOWER * alone + _SLACK:
        wrong.append(f"an honest visit took {longest:.1f} s")
    text = f"{len(took)} visits of {usual:.2f} s, the longest {longest:.1f} s, alone {alone:.2f} s"
    return text, wrong


@pytest.mark.nightly
@pytest.mark.parametrize("provider", ["local", "docker"])
def test_honest_sandboxes_work_beside_greedy_ones(provider: str) -> None:
    if provider == "docker":
        require_docker()
    text, wrong = run(provider, 60)
    assert wrong == [], text


if __name__ == "__main__":
    found = {name: run(name, float(sys.argv[2])) for name in sys.argv[1].split(",")}
    sys.stdout.writelines(
        f"{name}: {text}; wrong: {wrong}\n" for name, (text, wrong) in found.items()
    )
    sys.exit(any(wrong for _, wrong in found.values()))
