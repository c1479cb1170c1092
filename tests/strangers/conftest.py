"""What the tests of tasks share."""

from pathlib import Path

import pytest

from tests.strangers.tasks import CANARY


@pytest.fixture
def task_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SANDBOXKIT_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A folder of this machine's user, with whatever a task may look for."""
    folder = tmp_path / "outside"
    for name in ("instruction.md", "test.sh", "judge.py", "secret", "usr/x", "tests/test.sh"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(CANARY)
    return folder
