"""A test that fails because local sandboxes cannot start here, or not with limits, is skipped for that reason.

Most folders start local sandboxes, many through a program of their own, so a failed test is looked at: the product's
refusal has to be in its report, and doctor's checks have to confirm that the machine is the cause. CI, which
requires Docker and with it a machine that has all, skips none of these.
"""

import functools
import os
import re
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor

import anyio
import pytest

from sandboxkit.providers.local import _cgroup, _doctor
from sandboxkit.providers.local._host_user import HostUser
from sandboxkit.types import SandboxSpec
from tests.components import lack, reason, without_control_group

_NO_START = re.compile(
    r"SandboxStart|for\s+sandboxes\s+cannot\s+be\s+made|the\s+sandbox\s+did\s+not\s+start|cannot\s+run\s+sandboxes"
)
_NO_LIMITS = re.compile(r"needs\s+a\s+control\s+group\s+of\s+this\s+user's\s+own")
_REMEDY = (
    "see `sandboxkit doctor -p local`; in a container of Docker: "
    "--security-opt seccomp=unconfined --security-opt systempaths=unconfined"
)
_skipped = pytest.StashKey[str]()
"""Why a test was skipped so: its clean-up may miss what was never made."""


@functools.cache
def local_problem() -> str:
    """Return why no local sandbox can start here; an empty string if one can."""

    async def start(spec: SandboxSpec) -> None:
        """Start nothing: doctor's own start is one with gVisor."""

    with ThreadPoolExecutor(1) as pool:  # the thread of a test may have an event loop that runs
        found = pool.submit(anyio.run, _doctor.diagnose, HostUser(), start).result()
    return "" if found.available else reason("local sandboxes", _REMEDY, found.detail)


def limits_problem() -> str:
    """Return which limits local cannot hold exactly here; an empty string if it holds all."""
    missing = sorted({"memory", "pids", "cpu"} - _cgroup.available())
    return without_control_group(", ".join(missing)) if missing else ""


def require_local() -> None:
    """Skip a test that says itself that it needs local sandboxes, or fail it in CI."""
    if problem := local_problem():
        lack(problem, "DOCKER")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed and not os.environ.get("SANDBOXKIT_REQUIRE_DOCKER"):
        texts = "\n".join([report.longreprtext, *(text for _, text in report.sections)])
        problem = item.stash.get(_skipped, "")
        if not problem and _NO_START.search(texts):
            problem = local_problem()
        if not problem and _NO_LIMITS.search(texts):
            problem = limits_problem()
        if problem:
            item.stash[_skipped] = problem
            report.outcome = "skipped"
            report.longrepr = (str(item.path), item.location[1] or 0, f"Skipped: {problem}")
    return report
