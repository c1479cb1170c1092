"""What the tests of whole programs share: where the toolchains are, and gradings."""

import functools
import os
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from sandboxkit.integrations.rewards import Verdict
from sandboxkit.integrations.rewards.programs import LANGUAGES, Language, Program, language_of
from tests.components import lack, reason
from tests.docker_here import require_docker
from tests.local_here import require_local
from tests.rewards import conftest

DATA = Path(__file__).with_name("data")
LANGUAGES_IMAGE = os.environ.get("SANDBOXKIT_LANGUAGES_IMAGE", "sandboxkit/languages:trixie")
LANGUAGES_ROOT = os.environ.get("SANDBOXKIT_LANGUAGES_ROOT")
_WHERE_CI_RUNS = frozenset(("gcc", "g++"))
"""Tools that the image has in CI: with them the tests fail where it is not there, and are not skipped."""
_HAS = 'for tool; do if command -v "$tool" >/dev/null; then echo "$tool"; fi; done'


@functools.cache
def _tools_of_image() -> frozenset[str]:
    """Which tools of the languages the image has; none if there is no image."""
    tools = dict.fromkeys(tool for language in LANGUAGES for tool in language.tools)
    run = ("docker", "run", "--pull", "never", "--rm", "--network", "none", LANGUAGES_IMAGE)
    done = subprocess.run(
        [*run, "sh", "-c", _HAS, "sh", *tools], capture_output=True, text=True, timeout=120
    )
    return frozenset(done.stdout.split())


def options_for(provider: str, language: str | Language) -> dict[str, Any]:
    """Return the session's options where a language can be graded, or skip the test."""
    tools = language_of(language).tools
    if provider == "docker":
        image = require_docker()
        if {*tools} <= {"python3", "bash"}:
            return {"image": image}
        missing = [tool for tool in tools if tool not in _tools_of_image()]
        if not missing:
            return {"image": LANGUAGES_IMAGE}
        problem = reason("image of languages", "scripts/languages-image.sh", f"no {missing[0]}")
        lack(problem, "DOCKER" if _WHERE_CI_RUNS.intersection(missing) else "")
    require_local()
    if LANGUAGES_ROOT:
        return {"image": LANGUAGES_ROOT}
    missing = [
        tool
        for tool in tools
        if tool != "python3" and not (shutil.which(tool) or "").startswith("/usr/")
    ]
    if missing:
        remedy = "apt-get install them, or set SANDBOXKIT_LANGUAGES_ROOT"
        lack(reason("compilers in /usr", remedy, missing[0]))
    return {}


# Any: rows of data sets.
def grade_all(
    provider: str,
    grader: Program,
    submissions: Iterable[tuple[str, str, Mapping[str, Any]]],
    *,
    needs: str | Language = "python",
    in_turn: bool = True,
) -> dict[str, Verdict]:
    """Grade (name, code, task) each, in two sandboxes with the tools of a language."""
    options = options_for(provider, needs)
    return conftest.grade_all(
        provider, grader, submissions, in_turn=in_turn, concurrency=2, **options
    )


# Any: a row of a data set, and options of grade_all.
def grade(provider: str, grader: Program, code: str, task: Any, **options: Any) -> Verdict:
    return grade_all(provider, grader, [("it", code, task)], **options)["it"]
