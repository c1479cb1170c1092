"""Hostile layouts and archives of images are refused in time by a typed error, and leave nothing; honest ones are read."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

from sandboxkit import ImageNotFoundError, SandboxError, SandboxStartError, Session
from sandboxkit.providers.local import LocalProvider, _image
from sandboxkit.providers.local._folders import remove_tree
from sandboxkit.providers.local._host_user import HostUser
from sandboxkit.providers.local._image import LocalImage
from tests.data_here import beside
from tests.local.conftest import make, provider, state
from tests.local.test_host_uid import as_ordinary_user
from tests.local.test_image import docker_save, layer
from tests.strangers.layout_shapes import HONEST_SHAPES, HOSTILE, LAYERS, NEW_SAVE, bomb
from tests.strangers.layouts import CANARY, Layout, digest, member, tar, write

__all__ = ["layer", "provider", "state"]  # fixtures
pytestmark = pytest.mark.anyio
GIVEN = beside(__file__)
CHOSEN = GIVEN["chosen"]


@pytest.fixture
def private(tmp_path: Path) -> Path:
    """A tar archive of somebody else, which no image may show."""
    path = tmp_path / "private.tar"
    path.write_bytes(tar([(member("canary"), CANARY)]))
    path.chmod(0o600)
    return path


async def found(image: Path) -> LocalImage:
    with anyio.fail_after(20):
        return await _image.find(str(image), HostUser())


def cached(tmp_path: Path) -> list[str]:
    folder = tmp_path / "cache" / "images"
    return os.listdir(folder) if folder.exists() else []


def holds_the_canary(folder: Path) -> bool:
    files = (Path(at, name) for at, _, names in os.walk(folder) for name in names)
    return any(not f.is_symlink() and f.is_file() and CANARY in f.read_bytes() for f in files)


@pytest.mark.parametrize("make", HOSTILE.values(), ids=HOSTILE.keys())
async def test_a_hostile_image_is_refused_by_a_typed_error_and_leaves_nothing(
    tmp_path: Path, private: Path, make: Callable[[Path], object]
) -> None:
    make(image := tmp_path / "image")
    before = sorted(os.listdir(tmp_path))
    started = time.monotonic()
    with pytest.raises((ImageNotFoundError, SandboxStartError)) as caught:
        await found(image)
    assert time.monotonic() - started < 10
    assert str(image) in str(caught.value)
    assert "canary" not in str(caught.value)
    assert cached(tmp_path) == []
    assert sorted({*os.listdir(tmp_path), "cache"}) == sorted({*before, "cache"})
    assert (await found(Layout().folder(tmp_path / "honest"))).env == {"FROM_IMAGE": "yes"}


@pytest.mark.parametrize("make", HONEST_SHAPES.values(), ids=HONEST_SHAPES.keys())
async def test_an_honest_image_is_read(tmp_path: Path, make: Callable[[Path], object]) -> None:
    make(tmp_path / "image")
    image = await found(tmp_path / "image")
    assert (image.root / "etc/kept").read_bytes() == b"kept\n"
    assert (image.root / "usr/bin/again").samefile(image.root / "bin/program")
    assert image.env in ({}, {"FROM_IMAGE": "yes"})
    assert cached(tmp_path) == [image.root.parent.name]


async def test_what_an_older_version_extracted_is_extracted_anew(tmp_path: Path) -> None:
    image = Layout().folder(tmp_path / "image")
    index = (image / "index.json").stat()
    old = (image, image.stat().st_ino, index.st_size, index.st_mtime_ns, HostUser().owner()[0])
    place = tmp_path / "cache/images" / digest(repr(old).encode())[7:39]
    write(place, {"env.json": b'{"A": "x\\u0000--share-net"}', "root/canary": CANARY})
    assert (await found(image)).env == {"FROM_IMAGE": "yes"}


async def test_a_layout_that_changes_is_another_image(tmp_path: Path) -> None:
    first = await found(write(tmp_path / "image", NEW_SAVE))
    changed_file = tmp_path / "image/manifest.json"
    changed_file.write_bytes(changed_file.read_bytes() + b" ")
    assert (await found(tmp_path / "image")).root != first.root


async def test_honest_images_are_read_beside_hostile_ones_in_one_cache(tmp_path: Path) -> None:
    refused, read = [], []

    async def one(image: Path) -> None:
        try:
            read.append((await found(image)).root)
        except SandboxError as error:
            refused.append(error)

    async with anyio.create_task_group() as group:
        for number, make in enumerate([*LAYERS.values()][:4] * 2):
            make(tmp_path / f"hostile-{number}")
            group.start_soon(one, tmp_path / f"hostile-{number}")
            group.start_soon(
                one, Layout(env=(f"N={number}",)).folder(tmp_path / f"honest-{number}")
            )
    assert len(refused) == len({*read}) == 8
    assert sorted(cached(tmp_path)) == sorted(root.parent.name for root in read)


def with_a_bomb(tmp_path: Path) -> Path:
    made = Layout([bytes(512)], compress=lambda data: bomb(40 << 30), config={"rootfs": None})
    return made.folder(tmp_path / "image")


async def test_a_cancelled_start_ends_the_reading_of_a_bomb(tmp_path: Path) -> None:
    big = tmp_path / "big.tar.gz"
    big.write_bytes(bomb(40 << 30))
    for path in (with_a_bomb(tmp_path), big):
        with anyio.move_on_after(2) as scope:
            await _image.find(str(path), HostUser())
        assert scope.cancelled_caught
        assert cached(tmp_path) == []


@pytest.mark.parametrize("by", ["start_timeout", "SIGTERM", "SIGINT"])
def test_a_program_ends_that_reads_a_bomb(tmp_path: Path, by: str) -> None:
    image = with_a_bomb(tmp_path)
    limit = "2" if by == "start_timeout" else "600"
    argv = [sys.executable, "-c", GIVEN["program"], str(image), limit]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as program:
        try:
            if by != "start_timeout":
                until_extracting(tmp_path)
                program.send_signal(signal.Signals[by])
            program.communicate(timeout=30)
        finally:
            program.kill()
    assert program.returncode != 0
    if by != "SIGTERM":
        assert cached(tmp_path) == []


def until_extracting(tmp_path: Path) -> None:
    until = time.monotonic() + 30
    while not [*tmp_path.glob("cache/images/*/image/root/bomb")]:  # another process's doing
        assert time.monotonic() < until
        time.sleep(0.01)


async def test_what_a_killed_reading_left_is_removed_however_deep_it_is(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", GIVEN["program"], str(with_a_bomb(tmp_path)), "600"],
        stdout=subprocess.PIPE,
    ) as program:
        await anyio.to_thread.run_sync(until_extracting, tmp_path)
        program.kill()
    (left,) = [name for name in cached(tmp_path) if name.startswith(".temporary")]
    nest(tmp_path / "cache/images" / left, 3000)
    other = await found(Layout().folder(tmp_path / "honest"))
    assert cached(tmp_path) == [other.root.parent.name]


def nest(folder: Path, depth: int) -> None:
    """Make folders within folders, whose path is longer than the system's."""
    at = os.open(folder, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("d" * 10, dir_fd=at)
        inner = os.open("d" * 10, os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = inner
    os.close(os.open("file", os.O_CREAT | os.O_WRONLY, 0, dir_fd=at))
    os.fchmod(at, 0)
    os.close(at)


def test_a_tree_is_removed_whatever_it_has_and_nothing_beside_it(tmp_path: Path) -> None:
    outside = write(tmp_path / "outside", {"file": b"x"})
    folder = tmp_path / "tree"
    folder.mkdir()
    nest(folder, 3000)
    (folder / "link").symlink_to(outside)
    (folder / "loop").symlink_to(".")
    os.mkfifo(folder / "fifo")
    (folder / "closed/within").mkdir(parents=True)
    (folder / "closed").chmod(0)
    remove_tree(folder)
    assert sorted(os.listdir(tmp_path)) == ["outside"]
    assert (outside / "file").read_bytes() == b"x"
    assert outside.stat().st_mode & 0o777 == 0o755
    remove_tree(folder)


async def test_a_deep_tree_leaves_no_partial_snapshot(provider: LocalProvider, state: Path) -> None:
    code = "import os\nfor _ in range({}):\n os.mkdir('d' * 100); os.chdir('d' * 100)"
    async with Session(provider) as session, session.sandbox() as sandbox:
        await sandbox.exec(["python3", "-c", code.format(190)], check=True)
        snapshot = await sandbox.snapshot()
        await sandbox.exec(["python3", "-c", code.format(1200)], cwd="/tmp", check=True)
        with pytest.raises(SandboxError, match="folders"):
            await sandbox.snapshot()
        assert os.listdir(state / "snapshots") == [snapshot.id]
        await snapshot.delete()
        assert os.listdir(state / "snapshots") == []
    (state / "snapshots").rmdir()


async def test_the_variables_of_an_image_that_are_accepted_reach_the_sandbox(
    provider: LocalProvider, tmp_path: Path, layer: bytes
) -> None:
    env = ["EMPTY=", "EQUALS=a=b", "LINES=a\nb", "TEXT=é", f"LONG={'x' * 100_000}"]
    box = await make(provider, image=str(Layout([layer], env=env).folder(tmp_path / "image")))
    run = await box.sh('echo "$EQUALS,$LINES,$TEXT,${#LONG},${EMPTY-unset}"')
    assert run.stdout == "a=b,a\nb,é,100000,\n", run.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="root starts a program as another user")
async def test_a_user_gets_honest_images_alone(tmp_path: Path, state: Path, layer: bytes) -> None:
    folder = state / "images"
    folder.mkdir(parents=True)
    for number, name in enumerate(CHOSEN):
        HOSTILE[name](folder / str(number))
    docker_save(folder / "honest", [layer])
    subprocess.run(["chmod", "-R", "a+rX", folder], check=True)
    (folder / "private.tar").write_bytes(tar([(member("canary"), CANARY)]))
    program = GIVEN["as_user"].replace("FOLDER", str(folder)).replace("COUNT", str(len(CHOSEN)))
    out = await as_ordinary_user(program, state)
    assert out.splitlines() == ["refused"] * len(CHOSEN) + ["[b'kept', b'yes'] 1"]
    remove_tree(state)
