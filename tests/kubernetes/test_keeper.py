"""The program of a claim's keeper: half of a tar makes no dataset, whatever half it is."""

import subprocess
import sys
from pathlib import Path

import pytest

from sandboxkit import Dataset
from sandboxkit.datasets import DatasetStore
from sandboxkit.providers.kubernetes import _storage
from sandboxkit.providers.kubernetes._claim import STORE

KEEPER = "sandboxkit-0123456789abcdef"


class Keeper:
    """Runs the program on a folder of this machine."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._program = _storage._program().replace(f'"{STORE}/sandboxkit"', repr(str(root)))

    def run(self, *arguments: str, given: bytes = b"") -> tuple[int, list[str], str]:
        """Its status, the lines that it printed, and its stderr."""
        argv = [sys.executable, "-I", "-S", "-c", self._program, *arguments]
        done = subprocess.run(argv, input=given, capture_output=True, check=False, timeout=60)
        return done.returncode, done.stdout.decode().splitlines(), done.stderr.decode()

    def left(self, kind: str = "datasets") -> list[str]:
        """Return the names in the claim, without lock files."""
        return sorted(x.name for x in (self.root / kind).glob("*") if x.name[:5] != ".lock")


@pytest.fixture
def keeper(tmp_path: Path) -> Keeper:
    return Keeper(tmp_path / "claim")


@pytest.fixture
def dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Dataset:
    monkeypatch.setenv("SANDBOXKIT_STATE_DIR", str(tmp_path / "state"))
    folder = tmp_path / "data"
    (folder / "below").mkdir(parents=True)
    (folder / "below" / "file").write_text("content")
    (folder / "link").symlink_to("below/file")
    return Dataset(folder)


def test_a_tar_that_ends_early_leaves_nothing(keeper: Keeper, dataset: Dataset) -> None:
    name, tar = dataset.digest[7:], b"".join(DatasetStore().archive(dataset.digest))
    assert len(tar) == 512 * 7  # four members, one block of content, and the end's two
    for size in range(0, len(tar) - 512, 256):
        status, lines, said = keeper.run("fill", name, KEEPER, given=tar[:size])
        assert (status, lines, keeper.left()) == (1, ['"send"'], []), (size, said)
    status, lines, said = keeper.run("fill", name, KEEPER, given=tar)
    assert (status, lines) == (0, ['"send"', '"filled"']), said
    assert keeper.left() == [name]
    assert keeper.run("fill", name, KEEPER)[1] == ['"there"']
    assert keeper.run("show", "datasets")[1] == [f'["{name}"]']


def test_empty_datasets_are_no_folders_of_nodes(
    keeper: Keeper, tmp_path: Path, dataset: Dataset
) -> None:
    (tmp_path / "empty").mkdir()
    digest = Dataset(tmp_path / "empty").digest
    (keeper.root / "datasets" / digest[7:]).mkdir(parents=True)
    assert keeper.run("show", "datasets")[1] == ["[]"]
    tar = b"".join(DatasetStore().archive(digest))
    assert keeper.run("fill", digest[7:], KEEPER, given=tar)[1] == ['"send"', '"filled"']
    assert keeper.run("show", "datasets")[1] == [f'["{digest[7:]}"]']


def test_a_partial_copy_of_a_pod_that_runs_stays(keeper: Keeper) -> None:
    living, dead = f".partial.{'a' * 64}.{KEEPER}", f".partial.{'a' * 64}.sandboxkit-dead"
    for name in (living, dead):
        (keeper.root / "datasets" / name / "deep").mkdir(parents=True)
    given = f'[[], [], ["{KEEPER}"]]\n'.encode()
    assert keeper.run("end", "datasets", KEEPER, given=given)[1] == ['"send"', '"ended"']
    assert keeper.left() == [living]


def test_what_is_hidden_is_restored_or_removed(keeper: Keeper) -> None:
    for name in ("one", "two"):
        (keeper.root / "volumes" / name).mkdir(parents=True)
        (keeper.root / "volumes" / name / "file").write_text(name)
    _, (answer,), _ = keeper.run("hide", "volumes", KEEPER)
    assert answer == (
        f'[[".hidden.one.{KEEPER}", "one", true], [".hidden.two.{KEEPER}", "two", true]]'
    )
    assert keeper.run("show", "volumes")[1] == ["[]"]
    (keeper.root / "volumes" / "one").mkdir()  # as the node of a pod makes it
    given = f'[[".hidden.one.{KEEPER}"], [".hidden.two.{KEEPER}"], []]\n'.encode()
    assert keeper.run("end", "volumes", KEEPER, given=given)[0] == 0
    assert keeper.left("volumes") == ["one"]
    assert (keeper.root / "volumes" / "one" / "file").read_text() == "one"
    # A folder that was filled again meanwhile stays, and so does the hidden one, which may be mounted.
    keeper.run("hide", "volumes", KEEPER, "one")
    (keeper.root / "volumes" / "one").mkdir()
    (keeper.root / "volumes" / "one" / "new").touch()
    given = f'[[".hidden.one.{KEEPER}"], [], []]\n'.encode()
    assert keeper.run("end", "volumes", KEEPER, given=given)[0] == 0
    assert keeper.left("volumes") == [f".hidden.one.{KEEPER}", "one"]
