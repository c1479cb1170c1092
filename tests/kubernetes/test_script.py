"""scripts/kube.sh chooses the programs of a cluster, and the flags that their versions know."""

import os
import secrets
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.components import needs_root
from tests.kubernetes.cluster import SCRIPT, wait_until

pytestmark = needs_root("only root can run a cluster")


@dataclass(frozen=True, slots=True)
class World:
    """A cluster's state, and folders with programs, for a copy of the script that builds nothing."""

    script: Path
    state: Path
    built: Path
    given: Path

    def run(self, *arguments: str, **more: str) -> "subprocess.CompletedProcess[str]":
        environment = {**os.environ, "SANDBOXKIT_KUBE_DIR": str(self.state), **more}
        argv = [str(self.script), *arguments]
        return subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)

    @contextmanager
    def etcd(self) -> Iterator[None]:
        """A program of the build runs."""
        etcd = shutil.copy(shutil.which("sleep") or "", self.built / "bin" / "etcd")
        with subprocess.Popen([etcd, "1000"]) as running:
            (self.state / "pid" / "etcd").write_text(str(running.pid))
            yield
            running.kill()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    state = tmp_path / f"kube-{secrets.token_hex(5)}"
    found = World(tmp_path / "kube.sh", state, tmp_path / "built", tmp_path / "given")
    shutil.copy(SCRIPT, found.script)
    for folder in (
        state / "pid",
        state / "log",
        found.built / "bin",
        found.given,
        tmp_path / "kube",
    ):
        folder.mkdir(parents=True)
    builder = tmp_path / "kube" / "build.sh"
    builder.write_text('#!/bin/sh\necho "$1"\n')
    builder.chmod(0o755)
    (state / "built").write_text(str(found.built))
    yield found
    Path(f"/run/lock/{state.name}.lock").unlink(missing_ok=True)


def test_a_running_cluster_keeps_its_build_and_an_ended_one_gets_the_newest(
    world: World, tmp_path: Path
) -> None:
    def built() -> str:
        return world.run("build", XDG_CACHE_HOME=str(tmp_path)).stdout.strip()

    with world.etcd():
        assert built() == str(world.built)
    assert Path(built()).parent == tmp_path / "sandboxkit" / "kubernetes"


_PROGRAM = """#!/bin/sh
if [ "$1" = --version ]; then echo Kubernetes {version}; else echo "$@" >"$0.flags"; fi
"""


def test_programs_of_a_folder_get_the_flags_of_their_version(world: World) -> None:
    """Programs that write down their flags: no newer server can be had here."""
    (world.state / "given").write_text(str(world.given))

    def flags(folder: Path, program: str, binary: str, version: str) -> set[str]:
        file = folder / binary
        file.write_text(_PROGRAM.format(version=version))
        file.chmod(0o755)
        assert world.run("start", program).returncode == 0
        written = Path(f"{file}.flags")
        wait_until(lambda: written.is_file() and written.read_text() != "", "the flags")
        found = written.read_text().split()
        written.unlink()
        return {each.partition("=")[0] for each in found}

    old = flags(world.built / "bin", "kubelet", "kubelet", "v1.20.2")
    assert "--container-runtime" in old
    assert flags(world.given, "kubelet", "kubelet", "v1.36.2") == old - {"--container-runtime"}
    for program, binary in (
        ("controllers", "kube-controller-manager"),
        ("scheduler", "kube-scheduler"),
    ):
        old = flags(world.given, program, binary, "v1.20.2")
        assert flags(world.given, program, binary, "v1.36.2") == old - {"--port"} < old
    assert "--extensions" in flags(world.given, "sandboxes", "agent-sandbox-controller", "main")
    (world.given / "kube-scheduler").write_text(_PROGRAM.format(version="unknown"))
    refused = world.run("start", "scheduler")
    assert refused.returncode == 1
    assert "scheduler calls itself Kubernetes unknown" in refused.stderr


def test_up_refuses_a_folder_without_the_programs_and_one_beside_others_that_run(
    world: World,
) -> None:
    def refusal() -> str:
        done = world.run("up", SANDBOXKIT_KUBE_BIN=str(world.given))
        assert done.returncode == 1
        return done.stderr

    for name in ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet"):
        assert f"{world.given} has no {name}" in refusal()
        (world.given / name).write_text("")
        (world.given / name).chmod(0o755)
    with world.etcd():
        assert "another cluster runs; run kube.sh down first" in refusal()
