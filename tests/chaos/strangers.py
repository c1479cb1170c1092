"""Strangers attack `sandboxkit serve` in every way they know, while an honest client measures its own requests.

python -m tests.chaos.strangers PORT SECRET SECONDS SEED: the strangers alone, in a process of their own.
"""

import contextlib
import http.client
import json
import random
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.data_here import beside
from tests.service_here import service

GIVEN = beside(__file__)
_HONEST, _STRANGER = "h" * 20, "s" * 20
_QUOTA, _POOL, _AT_A_TIME = 2, 4, 6
_SLOWER, _SLACK = 3.0, 0.3
"""The p99 of honest requests may be so many times what it was without strangers, and so many seconds more."""
RIGHT = "def f(x): return x"
TASK = {"test_list": ["assert f(1) == 1"]}


@dataclass(slots=True)
class Siege:
    """What the honest client saw: seconds by request, before and during the attacks, and what went wrong."""

    idle: dict[str, list[float]] = field(default_factory=dict)
    attacked: dict[str, list[float]] = field(default_factory=dict)
    errors: Counter[str] = field(default_factory=Counter)
    attacks: dict[str, int] = field(default_factory=dict)

    @property
    def p99(self) -> dict[str, tuple[float, float]]:
        """For each request its p99 before and during the attacks."""
        return {name: (_p99(self.idle[name]), _p99(self.attacked[name])) for name in self.idle}

    @property
    def failed(self) -> bool:
        """Whether the strangers hurt the honest client."""
        slow = any(after > _SLOWER * before + _SLACK for before, after in self.p99.values())
        return slow or bool(self.errors) or not all(self.attacks.values())


def _p99(seconds: list[float]) -> float:
    return sorted(seconds)[int(0.99 * (len(seconds) - 1))]


class Client:
    """A client with a token."""

    def __init__(self, port: int, secret: str) -> None:
        self.port, self.secret = port, secret

    def ask(self, method: str, path: str, body: object = None) -> tuple[int, bytes]:
        """Make a request on a connection of its own."""
        made = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        with contextlib.closing(made) as connection:
            headers = {"Authorization": f"Bearer {self.secret}", "Content-Type": "application/json"}
            connection.request(method, path, json.dumps(body) if body else None, headers)
            answer = connection.getresponse()
            return answer.status, answer.read()

    @contextlib.contextmanager
    def sent(self, head: str, body: bytes = b"") -> Iterator[socket.socket]:
        """Send the head of a request, without its end, and some of its body."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=20) as connection:
            head += f"\r\nHost: x\r\nAuthorization: Bearer {self.secret}\r\n"
            connection.sendall(head.encode() + b"Content-Type: application/json\r\n" + body)
            yield connection


class Strangers(Client):
    """Attacks; each goes on for a second or so."""

    def silent(self, chance: random.Random) -> None:
        """Open connections without a whole head."""
        with contextlib.ExitStack() as stack:
            for _ in range(100):
                sent = chance.choice((b"", b"X-A: b"))
                stack.enter_context(self.sent("GET /healthz HTTP/1.1", sent))
            time.sleep(chance.random())

    def unfinished(self, chance: random.Random) -> None:
        """Send most of large bodies, in pieces and in tiny chunks, and never the end."""
        with contextlib.ExitStack() as stack:
            for _ in range(4):
                length = b"Content-Length: 60000000\r\n\r\n" + b"[" * chance.randrange(20_000_000)
                chunks = b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\n[\r\n" * 50_000
                sent = self.sent("POST /v1/run HTTP/1.1", chance.choice((length, chunks)))
                stack.enter_context(sent)

    def heavy(self, chance: random.Random) -> None:
        """Send tasks and bodies that take long to parse and to check."""
        given = chance.choice(GIVEN["heavy"])
        texts = [given["text"].replace("NUMBER", str(n)) for n in range(given["times"])]
        tests: Any = texts
        if not given.get("lines"):
            tests = given.get("begin", "") + given.get("between", "").join(texts)
            tests = [tests] if given["key"] == "test_list" else tests
        task = {**TASK, given["key"]: tests}
        status, said = self.ask(
            "POST", "/v1/grade", {"task": task, "submissions": [RIGHT] * _QUOTA}
        )
        assert status in (200, 422, 429), (status, said)

    def reads(self, chance: random.Random) -> None:
        """Read a large file several times at once, and take little of it."""
        status, said = self.ask("POST", "/v1/sandboxes", {"memory_mb": 512})
        if status != 201:
            return
        path = f"/v1/sandboxes/{json.loads(said)['id']}"
        make = ["sh", "-c", "head -c 100000000 /dev/zero > /workspace/big"]
        self.ask("POST", f"{path}/exec", {"argv": make})
        get = f"GET {path}/files?path=/workspace/big HTTP/1.1"
        with contextlib.ExitStack() as stack:
            for _ in range(4):
                stack.enter_context(self.sent(get, b"\r\n")).recv(1000)
            time.sleep(chance.random())
        self.ask("DELETE", path)

    def quota(self, chance: random.Random) -> None:
        """Ask for as much as the quota allows, again and again."""
        code = "import time; time.sleep(0.3)\n" + RIGHT
        body = {"task": TASK, "submissions": [code] * chance.randint(1, _QUOTA + 1)}
        for _ in range(3):
            status, said = self.ask("POST", "/v1/grade", body)
            assert status in (200, 422, 429), (status, said)

    def malformed(self, chance: random.Random) -> None:
        """Send what is no request, or none that can be answered."""
        for text in chance.sample(GIVEN["malformed"], 6):
            with socket.create_connection(("127.0.0.1", self.port), timeout=20) as connection:
                sent = text.replace("TOKEN", f"Authorization: Bearer {self.secret}")
                connection.sendall(sent.encode())
                connection.settimeout(0.3)
                connection.recv(1000)

    def dropped(self, chance: random.Random) -> None:
        """Leave in the middle of an answer."""
        body = json.dumps({"task": TASK, "submissions": [RIGHT, "import time; time.sleep(9)"]})
        for _ in range(4):
            length = f"Content-Length: {len(body)}\r\n\r\n{body}".encode()
            with self.sent("POST /v1/grade HTTP/1.1", length) as connection:
                connection.settimeout(chance.random())
                connection.recv(100)

    def attack(self, seconds: float, seed: int) -> Counter[str]:
        """Attack for so many seconds; return how often each way was tried. Raises on a wrong answer."""
        ways: list[Callable[[random.Random], None]] = [
            *(self.silent, self.unfinished, self.heavy, self.reads),
            *(self.quota, self.malformed, self.dropped),
        ]
        tried = Counter({way.__name__: 0 for way in ways})
        end, wrong = time.monotonic() + seconds, list[AssertionError]()

        def go_on(number: int) -> None:
            chance = random.Random(f"strangers {seed} {number}")
            while time.monotonic() < end and not wrong:
                way = (
                    ways[number % len(ways)]
                    if not tried[ways[number % len(ways)].__name__]
                    else chance.choice(ways)
                )
                try:
                    way(chance)
                except AssertionError as error:
                    wrong.append(error)
                except (OSError, http.client.HTTPException):
                    pass  # the service has closed the connection
                tried[way.__name__] += 1

        threads = [threading.Thread(target=go_on, args=(n,)) for n in range(len(ways))]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        if wrong:
            raise wrong[0]
        return tried


def _measure(
    honest: Client, over: Callable[[], bool], errors: Counter[str]
) -> dict[str, list[float]]:
    """Make one honest request after the other, and return how long each took."""
    found: dict[str, list[float]] = {"healthz": [], "run": [], "grade": []}
    requests = {
        "healthz": ("GET", "/healthz", None),
        "run": ("POST", "/v1/run", {"code": "print(6 * 7)"}),
        "grade": ("POST", "/v1/grade", {"task": TASK, "submissions": [RIGHT]}),
    }
    expected = {"healthz": b'"ok"', "run": b"42", "grade": b'"reward":1.0'}
    while not over():
        for name, request in requests.items():
            begun = time.monotonic()
            try:
                status, said = honest.ask(*request)
            except (OSError, http.client.HTTPException) as error:
                errors[f"{name}: {error!r}"] += 1
                continue
            if status != 200 or expected[name] not in said:
                errors[f"{name}: {status} {said[:200]!r}"] += 1
            found[name].append(time.monotonic() - begun)
    return found


def run(seconds: float, seed: int, *, idle: float = 10.0) -> Siege:
    """Attack a service for so many seconds, after `idle` seconds without attacks."""
    siege = Siege()
    with tempfile.TemporaryDirectory() as folder:
        tokens = Path(folder, "tokens")
        tokens.write_text(f"honest {_HONEST}\nstranger {_STRANGER} {_QUOTA}\n")
        tokens.chmod(0o600)
        with service("local", "--tokens", str(tokens), "--pool", str(_POOL)) as running:
            port = int(running.url.rpartition(":")[2])
            honest = Client(port, _HONEST)
            _measure(honest, iter([False, True]).__next__, siege.errors)  # the pool starts
            end = time.monotonic() + idle
            siege.idle = _measure(honest, lambda: time.monotonic() > end, siege.errors)
            command = [
                sys.executable,
                "-m",
                __name__,
                str(port),
                _STRANGER,
                str(seconds),
                str(seed),
            ]
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as strangers:
                over = lambda: strangers.poll() is not None  # noqa: E731
                siege.attacked = _measure(honest, over, siege.errors)
                assert strangers.stdout is not None
                siege.attacks = json.loads(strangers.stdout.read() or '{"a wrong answer": 0}')
    return siege


if __name__ == "__main__":
    port, secret, seconds, seed = sys.argv[1:]
    json.dump(Strangers(int(port), secret).attack(float(seconds), int(seed)), sys.stdout)
