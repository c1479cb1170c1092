"""A fuzz of layouts: whatever is damaged in one, it is read or refused, and shows nothing from outside of it."""

import contextlib
import os
import time
from pathlib import Path

import anyio
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from sandboxkit import ImageNotFoundError, SandboxStartError
from sandboxkit.providers.local._folders import remove_tree
from tests.data_here import beside
from tests.local.conftest import state
from tests.strangers.layout_shapes import HONEST_SHAPES, NAMES
from tests.strangers.layouts import CANARY, member, tar, write
from tests.strangers.test_layouts import cached, found, holds_the_canary

__all__ = ["state"]
SHAPES = HONEST_SHAPES | NAMES
LINKS = beside(__file__, "layouts.json")["fuzz"]["names"]
numbers = st.integers(0, 5000)
SLOW = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.filter_too_much]


@settings(max_examples=100, suppress_health_check=SLOW, database=None)
@given(
    shape=st.sampled_from(sorted(SHAPES)),
    damage=st.lists(st.tuples(numbers, numbers, st.integers(0, 255)), max_size=2),
    links=st.lists(st.tuples(numbers, st.sampled_from(LINKS)), max_size=1),
)
@example(shape="GNU's format", damage=[], links=[])
def test_a_layout_that_was_damaged_is_read_or_refused_and_shows_nothing_else(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    shape: str,
    damage: list[tuple[int, int, int]],
    links: list[tuple[int, str]],
) -> None:
    folder = tmp_path / "fuzz"
    remove_tree(folder)
    monkeypatch.setenv("SANDBOXKIT_CACHE_DIR", str(folder / "cache"))
    outside = {"canary": CANARY, "private.tar": tar([(member("canary"), CANARY)])}
    write(folder, outside)
    SHAPES[shape](image := folder / "image")
    beside_it = sorted({*os.listdir(folder), "cache"})
    inside = [each for each in sorted(image.rglob("*")) if each.is_file() and not each.is_symlink()]
    parts = inside or [image]
    for which, where, byte in damage:
        data = bytearray(parts[which % len(parts)].read_bytes() or b" ")
        data[where % len(data)] = byte
        parts[which % len(parts)].write_bytes(data)
    for which, to in links if inside else ():
        parts[which % len(parts)].unlink()
        with contextlib.suppress(OSError):
            parts[which % len(parts)].symlink_to(to)
    started, kept = time.monotonic(), list[str]()
    with contextlib.suppress(ImageNotFoundError, SandboxStartError):
        found_image = anyio.run(found, image)
        kept = [found_image.root.parent.name]
        pairs = [*found_image.env.keys(), *found_image.env.values()]
        assert all(isinstance(each, str) and "\0" not in each for each in pairs)
    assert time.monotonic() - started < 10
    assert cached(folder) == kept
    assert kept or damage or links or shape in NAMES
    assert not holds_the_canary(folder / "cache")
    assert set(os.listdir(folder)) <= {*beside_it}
    assert {name: (folder / name).read_bytes() for name in outside} == outside
