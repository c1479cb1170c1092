"""The whole suite leaves nothing behind: this is checked once, after the last test."""

import contextlib
import os
import shutil
import signal
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hangs import (
    pytest_configure,
    pytest_runtest_call,
    pytest_runtest_setup,
    pytest_runtest_teardown,
)
from tests.leftovers import LEFT, MARKER, survey

pytest_plugins = ["tests.local_here", "tests.outcomes"]

__all__ = [
    "pytest_configure",
    "pytest_runtest_call",
    "pytest_runtest_setup",
    "pytest_runtest_teardown",
]

_SECONDS = 90.0
"""How long the backends may take to finish their last removals, and a test of another process to clear
away what somebody whom it has killed had made."""
_SETTLED = 30.0
"""How long after the last test something that it began may still appear. Other processes' tests go on, and
make things whose owner has ended, all the time."""


# Started in the background or by nohup, these are ignored, and so they would be in every program
# that a test starts and sends one to.
for _number, _handler in (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGHUP, signal.SIG_DFL),
):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _handler)

# No example fails because a busy machine is slow. Each run has the same examples, so that a change is not
# refused for an example that has nothing to do with it; `make nightly` draws new ones. The frameworks' own
# environments have no hypothesis.
with contextlib.suppress(ModuleNotFoundError):
    from hypothesis import HealthCheck, settings

    settings.register_profile("random", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.register_profile("same", settings.get_profile("random"), derandomize=True)
    settings.load_profile(os.environ.get("SANDBOXKIT_HYPOTHESIS_PROFILE", "same"))


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """What runs the tests that are coroutines: our operations are awaited under asyncio alone."""
    return "asyncio"


@pytest.fixture(scope="session", autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """Give the run a temporary folder of its own, and fail if anything outlives the last test."""
    run = uuid.uuid4().hex
    temporary = Path(tempfile.mkdtemp(prefix="sbk-"))
    temporary.chmod(0o1777)  # some tests run as other users
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(MARKER, run)
        patch.setenv(
            "SANDBOXKIT_LEDGER", "off"
        )  # it is a file in the state folder; tests/ledger has its own
        patch.setenv("TMPDIR", str(temporary))
        patch.setattr(tempfile, "tempdir", None)
        before = survey(run, temporary)
        try:
            yield
            left = _wait_until_gone(run, temporary, before)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    if left:
        pytest.fail(LEFT + "\n".join(sorted(left)), pytrace=False)


def _wait_until_gone(run: str, temporary: Path, before: set[str]) -> set[str]:
    """Return what is still there in the end, without what first appeared later than _SETTLED seconds."""
    start = time.monotonic()
    left = survey(run, temporary) - before
    while left and time.monotonic() < start + _SECONDS:
        time.sleep(0.1)
        there = survey(run, temporary) - before
        if time.monotonic() > start + _SETTLED:
            known = {_which(each) for each in left}
            there = {each for each in there if _which(each) in known}
        left = there
    return left


def _which(line: str) -> str:
    """Return a line of the survey without a process's command and a container's status, which change."""
    return line if line.startswith("temporary") else " ".join(line.split(" ", 2)[:2])


def pytest_report_header() -> str:
    """Say which backends the run will meet."""
    return f"docker: {shutil.which('docker') or 'absent'}, uid {os.getuid()}"
