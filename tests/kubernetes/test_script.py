"""scripts/kube.sh chooses the build of a cluster's programs."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.kubernetes.cluster import SCRIPT

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can run a cluster")


def test_a_running_cluster_keeps_its_build_and_an_ended_one_gets_the_newest(tmp_path: Path) -> None:
    script = shutil.copy(SCRIPT, tmp_path)
    (tmp_path / "kube").mkdir()
    builder = tmp_path / "kube" / "build.sh"
    builder.write_text('#!/bin/sh\necho "$1"\n')
    builder.chmod(0o755)
    old, state = tmp_path / "old", tmp_path / "state"
    (old / "bin").mkdir(parents=True)
    etcd = shutil.copy(shutil.which("sleep") or "", old / "bin" / "etcd")
    (state / "pid").mkdir(parents=True)
    (state / "built").write_text(str(old))
    environment = {**os.environ, "SANDBOXKIT_KUBE_DIR": str(state), "XDG_CACHE_HOME": str(tmp_path)}

    def built() -> str:
        return subprocess.check_output([script, "build"], env=environment, text=True).strip()

    with subprocess.Popen([etcd, "1000"]) as running:
        (state / "pid" / "etcd").write_text(str(running.pid))
        assert built() == str(old)
        running.kill()
    assert Path(built()).parent == tmp_path / "sandboxkit" / "kubernetes"
