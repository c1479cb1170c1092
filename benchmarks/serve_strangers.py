"""Strangers attack `sandboxkit serve` in every way they know, while an honest client measures its own requests.

    python -m benchmarks.serve_strangers SECONDS [SEED]

It prints the p99 of each request before and during the attacks, and ends with status 1 if the honest client saw
an error or waited too long. With PORT after these two it is the strangers alone, in a process of their own.
"""

import contextlib
import json
import random
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from tests.data_here import beside
from tests.service_here import service

_NAME = "benchmarks.serve_strangers"  # also where it is __main__
ATTACKS: dict[str, dict[str, Any]] = beside(__file__)
_HONEST, _STRANGER = "h" * 20, "s" * 20
_QUOTA, _POOL, _AT_A_TIME = 2, 4, 6
_SLOWER, _SLACK = 3.0, 0.5
"""The p99 of honest requests may be so many times what it was without strangers, and so many seconds more."""
_RUN = {"code": "print(6 * 7)"}
_GRADE = {"task": {"test_list": ["assert f(1) == 1"]}, "submissions": ["def f(x): return x"]}
_REQUESTS: dict[str, tuple[str, str, object, str]] = {
    "healthz": ("GET", "/healthz", None, '"ok"'),
    "run": ("POST", "/v1/run", _RUN, '"42'),
    "grade": ("POST", "/v1/grade", _GRADE, '"reward":1.0'),
}
"""Honest requests, each with what its answer has."""
Times = dict[str, list[float]]


@dataclass(slots=True)
class Siege:
    """Seconds of the honest client's requests, before and during the attacks, and what went wrong."""

    idle: Times = field(default_factory=dict)
    attacked: Times = field(default_factory=dict)
    errors: Counter[str] = field(default_factory=Counter)
    attacks: dict[str, int] = field(default_factory=dict)

    @property
    def p99(self) -> dict[str, tuple[float, float]]:
        """The p99 of each request before and during the attacks."""
        both = {name: (sorted(self.idle[name]), sorted(self.attacked[name])) for name in _REQUESTS}
        last = {name: [int(0.99 * (len(each) - 1)) for each in both[name]] for name in both}
        return {name: (both[name][0][a], both[name][1][b]) for name, (a, b) in last.items()}

    @property
    def failed(self) -> bool:
        """Whether the strangers hurt the honest client."""
        slow = any(after > _SLOWER * before + _SLACK for before, after in self.p99.values())
        return slow or bool(self.errors)


def _as(secret: str, port: int) -> httpx.Client:
    headers = {"Authorization": f"Bearer {secret}"}
    return httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=60)


def request_of(attack: dict[str, Any], sandbox: str = "") -> bytes:
    """Return the bytes that an attack sends on a connection."""
    texts = [attack["text"]] * attack.get("times", 1)
    body: str = (
        attack.get("begin", "") + attack.get("between", "").join(texts) + attack.get("end", "")
    )
    if attack.get("bare"):
        return body.encode()
    lines = [attack["line"].replace("SANDBOX", sandbox) + " HTTP/1.1", "Host: localhost"]
    lines += [f"Authorization: Bearer {_STRANGER}", "Content-Type: application/json"]
    lines.append(attack.get("head", "Connection: close"))
    if "head" not in attack or "length" in attack:
        lines.append(f"Content-Length: {attack.get('length', len(body))}")
    return "\r\n".join([*lines, "", body]).encode()


def _attack(name: str, port: int, sandbox: str, chance: random.Random) -> str:
    """Attack once; return an answer that a stranger must not get, or an empty string."""
    attack = ATTACKS[name]
    sent = request_of(attack, sandbox)
    answers = []
    with contextlib.ExitStack() as stack, contextlib.suppress(OSError):  # the service may close
        made = [
            stack.enter_context(socket.create_connection(("127.0.0.1", port), 20))
            for _ in range(attack.get("connections", 1))
        ]
        for each in made:
            each.sendall(sent)
        end = time.monotonic() + attack.get("hold", 0.3) * chance.uniform(0.5, 1)
        for each in made:
            each.settimeout(max(0.001, end - time.monotonic()))
            with contextlib.suppress(OSError):
                answers.append(each.recv(2000).decode(errors="replace"))
    return next((f"{name}: {each}" for each in answers if each.startswith("HTTP/1.1 5")), "")


def _attack_all(port: int, seconds: float, seed: int) -> tuple[dict[str, int], dict[str, int]]:
    """Attack for so many seconds; return how often each way was tried, and wrong answers."""
    chance, end = random.Random(f"strangers {seed}"), time.monotonic() + seconds
    tried, wrong = Counter[str](), Counter[str]()
    with _as(_STRANGER, port) as http:
        made = http.post("/v1/sandboxes", json={}).json()["id"]
        big = ["sh", "-c", "head -c 100000000 /dev/zero > /workspace/big"]
        http.post(f"/v1/sandboxes/{made}/exec", json={"argv": big})

        def go_on(names: list[str]) -> None:
            while time.monotonic() < end:
                for name in chance.sample(names, len(names)):
                    wrong[_attack(name, port, f"/v1/sandboxes/{made}", chance)] += 1
                    tried[name] += 1

        with ThreadPoolExecutor(_AT_A_TIME) as threads:
            shares = [[*ATTACKS][number::_AT_A_TIME] for number in range(_AT_A_TIME)]
            list(threads.map(go_on, shares))
    return tried, {each: count for each, count in wrong.items() if each}


def _measure(http: httpx.Client, over: Callable[[], bool], errors: Counter[str]) -> Times:
    """Make one honest request after the other until it is over, and return how long each took."""
    found: Times = {name: [] for name in _REQUESTS}
    while not over():
        for name, (method, path, body, expected) in _REQUESTS.items():
            begun = time.monotonic()
            try:
                answer = http.request(method, path, json=body)
                if answer.status_code != 200 or expected not in answer.text:
                    errors[f"{name}: {answer.status_code} {answer.text[:200]}"] += 1
            except httpx.HTTPError as error:
                errors[f"{name}: {error!r}"] += 1
            found[name].append(time.monotonic() - begun)
    return found


def run(seconds: float, seed: int, *, idle: float = 10.0) -> Siege:
    """Attack a service for so many seconds, after `idle` seconds without attacks."""
    siege = Siege()
    with contextlib.ExitStack() as stack:
        tokens = Path(stack.enter_context(tempfile.TemporaryDirectory()), "tokens")
        tokens.write_text(f"honest {_HONEST}\nstranger {_STRANGER} {_QUOTA}\n")
        tokens.chmod(0o600)
        arguments = ("--tokens", str(tokens), "--pool", str(_POOL))
        running = stack.enter_context(service("local", *arguments))
        port = int(running.url.rpartition(":")[2])
        http = stack.enter_context(_as(_HONEST, port))
        _measure(http, iter([False, True]).__next__, siege.errors)  # the pool starts
        end = time.monotonic() + idle
        siege.idle = _measure(http, lambda: time.monotonic() > end, siege.errors)
        command = [sys.executable, "-m", _NAME, str(seconds), str(seed), str(port)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as strangers:
            siege.attacked = _measure(http, lambda: strangers.poll() is not None, siege.errors)
            siege.attacks, wrong = json.loads(strangers.communicate()[0])
        siege.errors.update(wrong)
    return siege


def main() -> int:
    """Attack, and print what the honest client saw."""
    seconds, seed = float(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0
    if len(sys.argv) > 3:
        json.dump(_attack_all(int(sys.argv[3]), seconds, seed), sys.stdout)
        return 0
    siege = run(seconds, seed)
    for name, (before, during) in siege.p99.items():
        count = len(siege.attacked[name])
        sys.stdout.write(f"{name}: p99 {before:.3f} s idle, {during:.3f} s attacked ({count})\n")
    sys.stdout.write(f"errors: {dict(siege.errors)}\nattacks: {siege.attacks}\n")
    return int(siege.failed)


if __name__ == "__main__":
    sys.exit(main())
