"""The server process: signals, logs, what it leaves."""

import signal
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path

import httpx
import pytest

from sandboxkit import Sandbox
from sandboxkit.testing.conformance._base import until
from tests.service_here import Service, service

SECRET = "s3cret" * 4
TAG = f"serve-test:{uuid.uuid4().hex}"
HEADERS = {"Authorization": f"Bearer {SECRET}"}


def served(folder: Path) -> AbstractContextManager[Service]:
    (folder / "tokens").write_text(f"alice {SECRET}\n")
    return service("local", "--tag", TAG, "--pool", "1", "--tokens", str(folder / "tokens"))


def test_requests_in_progress_finish_after_sigterm(tmp_path: Path) -> None:
    with (
        served(tmp_path) as running,
        httpx.Client(base_url=running.url, timeout=120) as http,
        ThreadPoolExecutor() as threads,
    ):
        body = {"code": "import time; time.sleep(2); print('done')", "timeout": 60}
        asked = threads.submit(http.post, "/v1/run", json=body, headers=HEADERS)
        until(
            # On a busy machine it may be over at once.
            lambda: asked.done() or "sandboxkit_admitted 1.0" in http.get("/metrics").text,
            "the request is in progress",
            120,
        )
        running.process.send_signal(signal.SIGTERM)
        assert asked.result().json()["stdout"] == "done\n"
        assert running.process.wait(timeout=120) == 0
    assert Sandbox.list(TAG, provider="local").result() == []


def test_no_secret_is_logged(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with (
        served(tmp_path) as running,
        httpx.Client(base_url=running.url, headers=HEADERS, timeout=120) as http,
    ):
        http.get("/v1/sandboxes")
        http.get("/v1/sandboxes", headers={"Authorization": f"Bearer {SECRET}x"})
        http.post("/v1/run", content=b"{")
        http.post("/v1/grade", json={"task": 1})
    log = "".join(capfd.readouterr())
    assert "Shutting down" in log
    assert SECRET not in log
