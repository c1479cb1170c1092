"""A program with any umask starts sandboxes, keeps snapshots and shares volumes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.local_here import require_local

PROGRAM = """
from sandboxkit import Session

with Session("local", mounts={"/shared": "volume:umask-test"}) as session:
    with session.sandbox() as sandbox:
        sandbox.exec(["sh", "-c", "mkdir kept; echo 1 >kept/a; echo 2 >/shared/b"]).result()
        snapshot = sandbox.snapshot().result()
    with session.sandbox(snapshot=snapshot) as sandbox:
        print(sandbox.exec(["cat", "kept/a", "/shared/b"]).result().stdout, end="")
"""


@pytest.mark.parametrize("umask", [0o000, 0o027, 0o077], ids=oct)
def test_a_sandbox_its_snapshot_and_its_volume_can_be_entered(umask: int, tmp_path: Path) -> None:
    require_local()
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM],
        env={**os.environ, "SANDBOXKIT_STATE_DIR": str(tmp_path / "state")},
        umask=umask,
        capture_output=True,
        text=True,
    )
    assert done.stdout == "1\n2\n", done.stderr
