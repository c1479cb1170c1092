"""`doctor --live` on real backends, and its end when it is interrupted."""

import json
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import nullcontext

import pytest

from sandboxkit import Operation, SandboxError
from sandboxkit.testing import FakeProvider, live
from sandboxkit.testing.fake import FakeBox
from tests.cli.conftest import Cli, following
from tests.conformance import changed, mutants
from tests.docker_here import require_docker
from tests.hosted.conftest import EMULATORS


@pytest.fixture(params=["local", "docker", *EMULATORS])
def provider(request: pytest.FixtureRequest) -> Iterator[str]:
    """The name of a backend: of this machine, or a vendor's at an emulator."""
    name: str = request.param
    if name == "docker":
        require_docker()
    with EMULATORS.get(name, nullcontext)():
        yield name


def test_every_behaviour_holds(provider: str, cli: Cli, tag: str) -> None:
    done = cli("doctor", "-p", provider, "--live", "--json", "--silence", "2s", "--tag", tag)
    rows = json.loads(done.stdout)
    assert [row["check"] for row in rows] == [row.name for row in live.ROWS]
    # A container's labels, which the listing shows, are those of its birth.
    unknown = {"renew"} if provider in ("docker", "modal") else set()
    assert {row["check"]: row["seen"] for row in rows if row["held"] is not True}.keys() == unknown
    assert done.returncode == 0
    assert cli("ls", "-p", provider, "-q", "--tag", tag).stdout == ""


@pytest.mark.parametrize(
    ("name", "defect", "seen"),
    [
        ("start", changed.SaysNothing, "stdout == "),
        ("latency", mutants.TrueFails, "returncode == 0"),
        ("bytes", changed.DropsInput, "assert result.stdout_bytes == _ALL_BYTES (streams.py:"),
        ("statuses", changed.AnswersLikeAShell, "DID NOT RAISE"),
        ("network", changed.ReachesTheInternet, "network='none': reached 1.1.1.1:443"),
        ("nothing left", mutants.ForgetsToDelete, "nothing is listed"),
    ],
)
def test_a_row_says_what_fails(
    name: str, defect: type[FakeBox], seen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "ROWS", [row for row in live.ROWS if row.name == name])
    monkeypatch.setattr(live, "DEADLINE", 1.0)
    fake = FakeProvider(defect)
    rows: list[live.CheckResult] = []
    try:
        rows += live.checks(fake, {})
    except ExceptionGroup as errors:
        assert errors.subgroup(SandboxError)  # noqa: PT017 - a mutant may refuse to delete
    for box in list(fake.boxes.values()):
        Operation(FakeBox.delete(box)).result(30)
    (row,) = rows
    assert row.held is False
    assert seen in row.seen


def test_a_row_that_does_not_hold_is_1(cli: Cli) -> None:
    done = cli("doctor", "--live", "--silence", "1s", "--network", "internet")  # perhaps none here
    rows = {line.split()[0]: line for line in done.stdout.splitlines()}
    assert done.returncode == ("NO" in rows["network"])
    assert "network='internet': reached" in rows["network"]


# What ends it is the same for each provider; each provider's deletion is checked by the contract.
@pytest.mark.parametrize(
    ("provider", "number"),
    [
        ("local", signal.SIGINT),
        ("e2b", signal.SIGTERM),
        *(
            pytest.param(name, signal.SIGTERM, marks=pytest.mark.nightly)
            for name in ("docker", "daytona", "modal")
        ),
    ],
    indirect=["provider"],
)
def test_interrupted_it_deletes_its_sandbox(provider: str, number: int, cli: Cli, tag: str) -> None:
    command = ("doctor", "-p", provider, "--live", "--silence", "10m", "--lifetime", "20m")
    with following(*command, "--tag", tag, stderr=subprocess.PIPE) as process:
        deadline = time.monotonic() + 120
        while not cli("ls", "-p", provider, "-q", "--tag", tag).stdout:
            assert time.monotonic() < deadline, "it created nothing"
        process.send_signal(number)
        out, err = process.communicate(timeout=120)
        assert process.returncode == 128 + number, err
    assert "CHECK" in out
    assert cli("ls", "-p", provider, "-q", "--tag", tag).stdout == ""
