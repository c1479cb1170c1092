"""A reset that lacks one of its steps is shown to."""

import hashlib
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from sandboxkit.providers._agent import binary
from sandboxkit.providers.docker._loopback import HOSTS
from tests.docker_here import require_docker
from tests.reset.jobs import Target
from tests.reset.mutants import MUTANTS, Mutant, build, prepare


@pytest.fixture(scope="module")
def source() -> Iterator[Path]:
    """The patched source, where every sandbox's user can reach what is built of it."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        prepare(folder / "agent")
        yield folder


@pytest.fixture
def agent(source: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """The mutant's binary, and on docker the volume that it will be put into."""
    mutant: Mutant = request.param
    if mutant.provider == "docker":
        require_docker()
    path = source / "agent-without"
    build(source / "agent", mutant.without, path)
    yield path
    if mutant.provider == "docker":
        digest = hashlib.sha256(path.read_bytes() + HOSTS).hexdigest()
        volume = f"sandboxkit-agent-{digest[:16]}"
        subprocess.run(["docker", "volume", "rm", volume], check=True, capture_output=True)


@pytest.mark.parametrize(
    ("agent", "mutant"),
    [(mutant, mutant) for mutant in MUTANTS],
    ids=[mutant.without.replace(" ", "-") for mutant in MUTANTS],
    indirect=["agent"],
)
def test_a_missing_step_is_detected(
    agent: Path, mutant: Mutant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(binary, "path", lambda arch=None: agent)
    with closing(Target(mutant.provider, "exec")) as target:
        if mutant.shown_by == "users":
            assert len({target.user() for _ in range(2)}) == 1
            return
        outcome, felt = target.felt_after_a_reset(mutant.shown_by)
        assert bool(felt) == mutant.felt
        assert outcome == ("clean" if mutant.felt else "given up")


def test_the_unchanged_copy_passes(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = source / "agent-whole"
    build(source / "agent", "nothing", path)
    monkeypatch.setattr(binary, "path", lambda arch=None: path)
    with closing(Target("local", "exec")) as target:
        for attack in sorted({mutant.shown_by for mutant in MUTANTS} - {"users"}):
            outcome, felt = target.felt_after_a_reset(attack)
            assert not felt, (attack, felt)
            assert outcome == "clean" or target.may_give_up(attack)
