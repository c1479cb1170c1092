"""The server process: signals, logs, what it leaves."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from sandboxkit import Sandbox

SECRET = "s3cret" * 4
TAG = f"serve-test:{uuid.uuid4().hex}"
HEADERS = {"Authorization": f"Bearer {SECRET}"}
SECONDS = 120.0


class Served:
    """`sandboxkit serve` in a process of its own."""

    def __init__(self, folder: Path, *args: str) -> None:
        tokens = folder / "tokens"
        tokens.write_text(f"alice {SECRET}\n")
        self.log = folder / "log"
        command = [sys.executable, "-m", "sandboxkit", "serve", "-p", "local", "--port", "0"]
        command += ["--tag", TAG]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [*command, "--tokens", str(tokens), *args], stdout=log, stderr=log
            )
        self.url = self._listening()

    def _listening(self) -> str:
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            for word in self.log.read_text().split():
                if word.startswith("http://"):
                    return word
            assert self.process.poll() is None, self.log.read_text()
            time.sleep(0.01)
        raise AssertionError(self.log.read_text())

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    server = Served(tmp_path, "--pool", "1")
    yield server
    server.end()


def in_thread(url: str, code: str) -> tuple[threading.Thread, list[httpx.Response]]:
    answers: list[httpx.Response] = []

    def ask() -> None:
        body = {"code": code, "timeout": 60}
        with contextlib.suppress(httpx.TransportError):  # the server was killed
            answers.append(httpx.post(f"{url}/v1/run", json=body, headers=HEADERS, timeout=SECONDS))

    thread = threading.Thread(target=ask)
    thread.start()
    return thread, answers


def admitted(url: str) -> float:
    page = httpx.get(f"{url}/metrics", timeout=SECONDS).text
    [line] = [each for each in page.splitlines() if each.startswith("sandboxkit_admitted ")]
    return float(line.split()[1])


def wait_for_work(url: str, thread: threading.Thread) -> None:
    """Wait until the thread's request is in progress; on a busy machine it may be over at once."""
    while not admitted(url) and thread.is_alive():
        time.sleep(0.02)


def sandboxes() -> list[str]:
    return [info.id for info in Sandbox.list(TAG, provider="local").result()]


def test_requests_in_progress_finish_after_sigterm(served: Served) -> None:
    thread, answers = in_thread(served.url, "import time; time.sleep(2); print('done')")
    wait_for_work(served.url, thread)
    served.process.send_signal(signal.SIGTERM)
    thread.join()
    assert answers[0].json()["stdout"] == "done\n"
    assert served.process.wait(timeout=SECONDS) == 0
    assert sandboxes() == []


def test_no_secret_is_logged(served: Served) -> None:
    with httpx.Client(base_url=served.url, headers=HEADERS, timeout=SECONDS) as http:
        http.get("/v1/sandboxes")
        http.get("/v1/sandboxes", headers={"Authorization": f"Bearer {SECRET}x"})
        http.post("/v1/run", content=b"{")
        http.post("/v1/grade", json={"task": 1})
    served.process.send_signal(signal.SIGTERM)
    served.process.wait(timeout=SECONDS)
    assert SECRET not in served.log.read_text()
    assert SECRET not in Path(f"/proc/{os.getpid()}/cmdline").read_text()


def test_the_description_of_the_paths_is_served(served: Served) -> None:
    paths = httpx.get(f"{served.url}/openapi.json", timeout=SECONDS).json()["paths"]
    assert {"/v1/grade", "/v1/run", "/run_code", "/slime", "/v1/sandboxes"} < set(paths)
    assert httpx.get(f"{served.url}/readyz", timeout=SECONDS).status_code == 200
