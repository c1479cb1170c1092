"""Calls whose connections break: each returns or raises a typed error, and in time."""

from pathlib import Path
from pprint import pformat

import pytest

from tests.chaos.targets import TARGETS, run
from tests.docker_here import require_docker


@pytest.mark.parametrize("name", TARGETS)
def test_a_call_whose_connection_breaks_raises_a_typed_error_in_time(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name.startswith("docker"):
        require_docker()
    monkeypatch.setenv("SANDBOXKIT_STATE_DIR", str(tmp_path))
    tally = run(name, 25, seed=1)
    assert tally.calls.total() == 25
    assert tally.faults.total() > 0
    assert not tally.failed, pformat(tally)
