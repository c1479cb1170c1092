"""scripts/kube.sh chooses the programs of a cluster, and the flags that their versions know."""

import os
import secrets
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.components import needs_root
from tests.kubernetes.cluster import SCRIPT, wait_until

pytestmark = needs_root("only root can run a cluster")


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


@pytest.fixture
def state(tmp_path: Path) -> Iterator[Path]:
    """The folder of a cluster, whose lock is removed afterwards."""
    folder = tmp_path / f"kube-{secrets.token_hex(5)}"
    (folder / "pid").mkdir(parents=True)
    (folder / "log").mkdir()
    yield folder
    Path(f"/run/lock/{folder.name}.lock").unlink()


_PROGRAM = """#!/bin/sh
if [ "$1" = --version ]; then echo Kubernetes {version}; else echo "$@" >"$0.flags"; fi
"""


def test_programs_of_a_folder_get_the_flags_of_their_version(tmp_path: Path, state: Path) -> None:
    """Programs that write down their flags: no newer server can be had here."""
    built, given = tmp_path / "built", tmp_path / "given"
    for folder in (built / "bin", given):
        folder.mkdir(parents=True)
    (state / "built").write_text(str(built))
    (state / "given").write_text(str(given))
    environment = {**os.environ, "SANDBOXKIT_KUBE_DIR": str(state)}

    def flags(folder: Path, program: str, binary: str, version: str) -> set[str]:
        file = folder / binary
        file.write_text(_PROGRAM.format(version=version))
        file.chmod(0o755)
        subprocess.run([SCRIPT, "start", program], env=environment, check=True)
        written = Path(f"{file}.flags")
        wait_until(lambda: written.is_file() and written.read_text() != "", "the flags")
        found = written.read_text().split()
        written.unlink()
        return {each.partition("=")[0] for each in found}

    old = flags(built / "bin", "kubelet", "kubelet", "v1.20.2")
    assert "--container-runtime" in old
    assert flags(given, "kubelet", "kubelet", "v1.36.2") == old - {"--container-runtime"}
    for program, binary in (
        ("controllers", "kube-controller-manager"),
        ("scheduler", "kube-scheduler"),
    ):
        old = flags(given, program, binary, "v1.20.2")
        assert flags(given, program, binary, "v1.36.2") == old - {"--port"} < old
    assert "--extensions" in flags(given, "sandboxes", "agent-sandbox-controller", "main")
    (given / "kube-scheduler").write_text(_PROGRAM.format(version="unknown"))
    refused = subprocess.run(
        [SCRIPT, "start", "scheduler"], env=environment, capture_output=True, text=True, check=False
    )
    assert refused.returncode == 1
    assert "scheduler calls itself Kubernetes unknown" in refused.stderr


def test_up_refuses_a_folder_without_the_programs_and_one_beside_others_that_run(
    tmp_path: Path, state: Path
) -> None:
    script = Path(shutil.copy(SCRIPT, tmp_path))
    (tmp_path / "kube").mkdir()
    (tmp_path / "kube" / "build.sh").symlink_to(shutil.which("true") or "")
    built, given = tmp_path / "built", tmp_path / "given"
    for folder in (built / "bin", given):
        folder.mkdir(parents=True)
    (state / "built").write_text(str(built))
    etcd = shutil.copy(shutil.which("sleep") or "", built / "bin" / "etcd")
    environment = {
        **os.environ,
        "SANDBOXKIT_KUBE_DIR": str(state),
        "SANDBOXKIT_KUBE_BIN": str(given),
    }

    def refusal() -> str:
        done = subprocess.run(
            [script, "up"], env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 1
        return done.stderr

    for name in ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet"):
        assert f"{given} has no {name}" in refusal()
        (given / name).write_text("")
        (given / name).chmod(0o755)
    with subprocess.Popen([etcd, "1000"]) as running:
        (state / "pid" / "etcd").write_text(str(running.pid))
        assert "another cluster runs; run kube.sh down first" in refusal()
        running.kill()
