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
_PROGRAM = """#!/bin/sh
if [ "$1" = --version ]; then echo Kubernetes {version}; else echo "$@" >"$0.flags"; fi
"""


class World:
    """A cluster's state, and folders with programs, for a copy of the script that builds nothing."""

    def __init__(self, folder: Path) -> None:
        self.script = Path(shutil.copy(SCRIPT, folder / "kube.sh"))
        self.state = folder / f"kube-{secrets.token_hex(5)}"
        self.built, self.given = folder / "built", folder / "given"
        for path in ("pid", "log"):
            (self.state / path).mkdir(parents=True)
        for path in (self.built / "bin", self.given):
            path.mkdir(parents=True)
        (self.state / "built").write_text(str(self.built))

    def run(self, *arguments: str, **more: str) -> "subprocess.CompletedProcess[str]":
        environment = {**os.environ, "SANDBOXKIT_KUBE_DIR": str(self.state), **more}
        argv = [str(self.script), *arguments]
        return subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)


def _write(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    found = World(tmp_path)
    yield found
    Path(f"/run/lock/{found.state.name}.lock").unlink(missing_ok=True)


def test_up_refuses_a_folder_without_the_programs(world: World) -> None:
    for name in ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet"):
        refused = world.run("up", SANDBOXKIT_KUBE_BIN=str(world.given))
        assert (refused.returncode, f"{world.given} has no {name}" in refused.stderr) == (1, True)
        _write(world.given / name, "")


def test_programs_of_a_folder_get_the_flags_of_their_version(world: World) -> None:
    """Programs that write down their flags: no newer server can be had here."""
    (world.state / "given").write_text(str(world.given))

    def flags(folder: Path, program: str, binary: str, version: str) -> set[str]:
        _write(folder / binary, _PROGRAM.format(version=version))
        assert world.run("start", program).returncode == 0
        written = folder / f"{binary}.flags"
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
    _write(world.given / "kube-scheduler", _PROGRAM.format(version="unknown"))
    refused = world.run("start", "scheduler")
    assert refused.returncode == 1
    assert "scheduler calls itself Kubernetes unknown" in refused.stderr
