"""What a download may cost is bounded whatever the sandbox sends, and a broken upload costs nothing."""

import os
import random
import shutil
import tarfile
import threading
import tracemalloc
from collections.abc import Iterator
from contextlib import aclosing, contextmanager
from itertools import chain, repeat
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sandboxkit import Operation, SandboxFileError, Session
from sandboxkit._calls import _exec_files
from sandboxkit.testing import FakeProvider
from sandboxkit.types import SandboxSpec
from tests.core.test_transfer import Sent, file, receive
from tests.strangers.layouts import tar

MB = 1 << 20
PEAK = 16 * MB


def header(name: str, kind: bytes, size: int) -> bytes:
    member = tarfile.TarInfo(name)
    member.type, member.size = kind, size
    return member.tobuf(tarfile.GNU_FORMAT)


@contextmanager
def peak(most: int) -> Iterator[None]:
    """Fail if more memory is taken meanwhile."""
    tracemalloc.start()
    yield
    found = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found < most


@pytest.mark.parametrize("kind", [b"x", b"g", b"L", b"K"])
def test_an_extended_header_of_300_mb_is_not_read(tmp_path: Path, kind: bytes) -> None:
    sent = Sent(chain([header("long", kind, 300 * MB)], repeat(bytes(MB), 300)))
    with peak(2 * PEAK), pytest.raises(SandboxFileError, match="extended headers"):
        receive(sent, tmp_path)
    assert sent.taken < PEAK


@pytest.mark.parametrize("size", [0, 60_000])
def test_extended_headers_without_a_member_are_bounded(tmp_path: Path, size: int) -> None:
    sent = Sent(repeat(header("long", b"g", size) + bytes(-(-size // 512) * 512)))
    with pytest.raises(SandboxFileError, match="extended headers"):
        receive(sent, tmp_path)
    assert sent.taken < PEAK


def test_long_names_count_against_the_limits(tmp_path: Path) -> None:
    named = header("long", b"L", 60_000) + b"n" * 60_416 + header("short", b"2", 0)
    with pytest.raises(SandboxFileError):
        receive(Sent(repeat(named)), tmp_path)


def test_a_declared_size_is_refused_before_it_is_read(tmp_path: Path) -> None:
    for kind in (b"0", b"Z", b"S"):  # a file, one unknown, and GNU's sparse one
        with pytest.raises(SandboxFileError, match="max_bytes=1048576"):
            receive(Sent([header("huge", kind, 1 << 40)]), tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("cut", [0, 1, 511, 512, 700, 1024, 1536])
def test_a_truncated_or_broken_archive_is_refused(tmp_path: Path, cut: int) -> None:
    whole = tar([file("file", b"x" * 600)])
    with pytest.raises(SandboxFileError, match="ends too early" if cut else "broken archive"):
        receive(Sent([whole[:cut] or b"not a tar" * 100]), tmp_path)


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_valid_archives_of_every_format_are_accepted(tmp_path: Path, form: int) -> None:
    names = ["a" * 99, "b/" * 60 + "deep", "c" * 255, "new\nline", "\udcff\udcfe", "ü", " ", "x=1"]

    whole = tar([file(name, os.fsencode(name)) for name in names], form)
    assert receive(Sent([whole]), tmp_path).files == len(names)
    for name in names:
        assert os.fsencode(name) == Path(tmp_path, name).read_bytes()


@pytest.mark.parametrize("name", ["x" * 256, "/".join(["y" * 99] * 40), "z/" * 65 + "z", "f/g"])
def test_an_impossible_name_is_refused(tmp_path: Path, name: str) -> None:
    target = tmp_path / "target"
    with pytest.raises(SandboxFileError):
        receive(Sent([tar([file("f"), file(name)])]), target)
    shutil.rmtree(target)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("count", [0, 2])
def test_a_file_that_became_something_else_is_refused(tmp_path: Path, count: int) -> None:
    whole = tar(file(f"{number}") for number in range(count))
    with pytest.raises(SandboxFileError, match="not this one file"):
        receive(Sent([whole]), tmp_path / "file", single=True)


def test_a_full_disk_on_the_host_is_not_the_sandboxs_error(tmp_path: Path) -> None:
    whole = tar([file("file")])
    (tmp_path / "file").write_bytes(b"in the way of a folder")
    with pytest.raises(OSError, match=r"File exists|Not a directory") as caught:
        receive(Sent([whole]), tmp_path / "file" / "below")
    assert not isinstance(caught.value, SandboxFileError)


@settings(
    max_examples=150,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(seed=st.integers(0, 1 << 32), flips=st.integers(1, 40), cut=st.integers(0, 9000))
def test_a_mangled_archive_is_refused_or_stays_below_its_target(
    tmp_path: Path, seed: int, flips: int, cut: int
) -> None:
    members = [file("a/" * 20 + "long" * 30, b"x" * 700), file("\udcff" * 120), file("b", b"")]
    numbers = random.Random(seed)
    whole = bytearray(tar(members, numbers.choice([tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])))
    for _ in range(flips):
        whole[numbers.randrange(len(whole))] = numbers.randrange(256)
    if numbers.random() < 0.7:  # else every header's sum is wrong, and nothing else is seen
        for start in range(0, len(whole), 512):
            block = whole[start : start + 512]
            block[148:156] = b" " * 8
            whole[start + 148 : start + 156] = b"%06o\0 " % sum(block)
    target = tmp_path / "target"
    try:
        receive(Sent([bytes(whole[: cut or len(whole)])]), target)
    except SandboxFileError:
        pass
    finally:
        shutil.rmtree(target, ignore_errors=True)
    assert list(tmp_path.iterdir()) == []


def test_an_upload_that_does_not_fit_leaves_no_thread(tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(bytes(30 * MB))
    (tmp_path / "small").write_text("fits")
    with Session("local", disk_mb=20) as session, session.sandbox() as small:
        small.exec(["true"]).result()
        before = threading.active_count()
        for number in range(30):
            with pytest.raises(SandboxFileError, match="no space left"):
                small.upload(tmp_path / "big", f"/workspace/{number % 2}").result(60)
        assert threading.active_count() <= before + 10  # workers that all calls share
        small.exec(["sh", "-c", "rm -rf /workspace/*"], check=True).result()
        small.upload(tmp_path / "small", "/workspace/small").result(60)
        assert small.read_file("/workspace/small").result() == b"fits"


MANY = Path(__file__).with_name("many_files.txt").read_text()


@pytest.mark.parametrize("provider", ["local", "fake"])
@pytest.mark.parametrize(("count", "width"), [(50_001, 5), (40_000, 200)])
def test_a_listing_is_bounded(provider: str, count: int, width: int) -> None:
    chosen = FakeProvider() if provider == "fake" else provider
    with Session(chosen) as session, session.sandbox() as sandbox:
        script = MANY.format(count=count, width=width)
        sandbox.write_file("/workspace/many.py", script).result()
        script = script.replace("/workspace/many", "many") if provider == "fake" else script
        sandbox.exec(["python3", "-c", script], cwd="/workspace", check=True).result()
        too_many = pytest.raises(SandboxFileError, match=r"more than 50000 entries or .* find\(1\)")
        with peak(64 * MB), too_many:
            sandbox.list_dir("/workspace/many").result(120)
        assert len(sandbox.list_dir("/workspace").result()) == 2


@pytest.mark.parametrize("answer", ["f x 644 1.0 /a\\0", "nothing\\0", "\\377\\0", "f\\0f\\0"])
def test_forged_find_output_is_a_file_error(tmp_path: Path, answer: str) -> None:
    find = tmp_path / "find"
    find.write_text(f"#!/bin/sh\nprintf '{answer}'\n")
    find.chmod(0o755)
    path = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    with Session(FakeProvider(), env=path) as session, session.sandbox() as sandbox:
        for call in (sandbox.stat, sandbox.list_dir):
            with pytest.raises(SandboxFileError, match=r"find\(1\) printed"):
                call("/workspace").result()
        find.write_text("#!/bin/sh\n")
        with pytest.raises(SandboxFileError, match="printed no file"):
            sandbox.stat("/workspace").result()
        find.write_text("#!/bin/sh\nexec cat /dev/zero\n")
        with pytest.raises(SandboxFileError):
            sandbox.list_dir("/workspace").result(60)


def test_an_archive_of_a_provider_that_only_executes_may_be_left_early() -> None:
    async def main() -> None:
        box = await FakeProvider().create(SandboxSpec())
        try:
            await box.write_file("/workspace/f", bytes(1 << 22), mode=None)
            async with aclosing(_exec_files.get_archive(box, "/workspace")) as tar:
                assert await anext(tar)
        finally:
            await box.delete()

    Operation(main()).result(timeout=60)
