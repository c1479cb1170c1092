"""A test that fails because local sandboxes cannot start here is skipped with doctor's reason.

Most folders start local sandboxes, many through a program of their own, so a failed test is looked at: the product's
refusal has to be in its report, and doctor has to confirm that no sandbox starts. CI never skips these.
"""

import functools
import os
import re
from collections.abc import Generator

import pytest

from sandboxkit import Operation
from sandboxkit.providers.local import LocalProvider
from tests.components import lack, reason

_REFUSAL = re.compile(
    r"SandboxStart|for sandboxes\s+cannot\s+be\s+made|the\s+sandbox\s+did\s+not\s+start"
)
_refused = pytest.StashKey[bool]()
"""Whether the test was skipped for it: its clean-up may miss what was never made."""
_REMEDY = (
    "see `sandboxkit doctor -p local`; in a container of Docker: "
    "--security-opt seccomp=unconfined --security-opt systempaths=unconfined"
)


@functools.cache
def local_problem() -> str:
    """Return why no local sandbox can start here; an empty string if one can."""

    async def diagnose() -> str:
        provider = LocalProvider()
        try:
            found = await provider.diagnose()
        finally:
            await provider.aclose()
        return "" if found.available else reason("local sandboxes", _REMEDY, found.detail)

    return Operation(diagnose()).result(60)


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
        texts = [report.longreprtext, *(text for _, text in report.sections)]
        refused = item.stash.get(_refused, False) or any(map(_REFUSAL.search, texts))
        if refused and (problem := local_problem()):
            item.stash[_refused] = True
            report.outcome = "skipped"
            report.longrepr = (str(item.path), item.location[1] or 0, f"Skipped: {problem}")
    return report
