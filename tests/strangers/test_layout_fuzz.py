"""A fuzz of layouts: whatever is changed in one, it is read or refused, and shows nothing from outside of it."""

import contextlib
import copy
import json
import os
import tarfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from sandboxkit import ImageNotFoundError, SandboxStartError
from sandboxkit.providers.local._removal import remove_tree
from tests.data_here import beside
from tests.local.conftest import state
from tests.strangers.layout_shapes import in_archive
from tests.strangers.layouts import CANARY, HONEST, Layout, changed, member, saved, tar, write
from tests.strangers.test_layouts import cached, found, holds_the_canary

__all__ = ["state"]
GIVEN = beside(__file__, "layouts.json")["fuzz"]
NAMES = [*GIVEN["names"], "d/" * 300 + "x", "x" * 256]
names = st.sampled_from(NAMES)
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from([*NAMES, "A=\0--share-net", "\ud800"]),
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(GIVEN["keys"]), inner, max_size=3)
    ),
    max_leaves=6,
)


def nodes(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items: Iterable[tuple[Any, Any]] = value.items() if isinstance(value, dict) else ()
    if isinstance(value, list):
        items = enumerate(value)
    return [at, *(path for key, inner in items for path in nodes(inner, (*at, key)))]


@dataclass(frozen=True)
class Mutation:
    fields: list[tuple[str, int, Any]]
    damage: list[tuple[int, int, int]]
    links: list[tuple[int, str]]
    form: str

    def make(self, path: Path) -> Path:
        def change(name: str, value: Any) -> Any:
            for which, number, to in self.fields:
                if which == name:
                    paths = nodes(value)
                    at = paths[number % len(paths)]
                    value = changed(name, *at, to=copy.deepcopy(to))(name, value)
            return value

        files = Layout(change=change).files()
        if self.form == "saved":
            files = saved({"0/layer.tar": HONEST})
            (manifest,) = json.loads(files["manifest.json"])
            files["manifest.json"] = json.dumps([change("manifest", manifest)]).encode()
        places = sorted(files)
        for which, where, byte in self.damage:
            name = places[which % len(files)]
            data = bytearray(files[name])
            data[where % len(data) : where % len(data) + 1] = bytes([byte])
            files[name] = bytes(data)
        links = {places[which % len(files)]: to for which, to in self.links}
        if self.form != "folder":
            added = [member(name, tarfile.SYMTYPE, to) for name, to in links.items()]
            return in_archive(path, files, *added)
        write(path, files)
        for name, to in links.items():
            (path / name).unlink()
            with contextlib.suppress(OSError):
                (path / name).symlink_to(to)
        return path


UNCHANGED = Mutation([], [], [], "folder")
numbers = st.integers(0, 60)
fields = st.tuples(st.sampled_from(["config", "manifest", "index"]), numbers, values)
damage = st.tuples(numbers, st.integers(0, 5000), st.integers(0, 255))
mutations = st.builds(
    Mutation,
    st.lists(fields, max_size=3),
    st.lists(damage, max_size=2),
    st.lists(st.tuples(numbers, names), max_size=1),
    st.sampled_from(["folder", "archive", "saved"]),
)


@settings(max_examples=100, suppress_health_check=[*HealthCheck], database=None)
@given(mutations)
@example(UNCHANGED)
def test_a_layout_that_was_changed_is_read_or_refused_and_shows_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mutation: Mutation
) -> None:
    monkeypatch.setenv("SANDBOXKIT_CACHE_DIR", str(tmp_path / "fuzz/cache"))
    folder = tmp_path / "fuzz"
    remove_tree(folder)
    outside = {"canary": CANARY, "private.tar": tar([(member("canary"), CANARY)])}
    write(folder, outside)
    image = mutation.make(folder / "image")
    started, kept = time.monotonic(), list[str]()
    with contextlib.suppress(ImageNotFoundError, SandboxStartError):
        found_image = anyio.run(found, image)
        kept = [found_image.root.parent.name]
        pairs = [*found_image.env.keys(), *found_image.env.values()]
        assert all(isinstance(each, str) and "\0" not in each for each in pairs)
    assert time.monotonic() - started < 10
    assert cached(folder) == kept
    assert kept or mutation != UNCHANGED
    assert not holds_the_canary(folder / "cache")
    assert sorted({*os.listdir(folder)} - {"cache"}) == ["canary", "image", "private.tar"]
    assert {name: (folder / name).read_bytes() for name in outside} == outside
