"""A fuzz of layouts: whatever is changed in one, it is read or refused, and shows nothing from outside of it."""

import contextlib
import copy
import json
import os
import shutil
import tarfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sandboxkit import ImageNotFoundError, SandboxStartError
from sandboxkit.providers.local._removal import remove_tree
from tests.local.conftest import state
from tests.strangers.hostile_layouts import in_archive
from tests.strangers.layouts import CANARY, HONEST, Layout, changed, member, saved, tar, write
from tests.strangers.test_layouts import cached, found, holds_the_canary

__all__ = ["state"]
FUZZ_SECONDS = float(os.environ.get("SANDBOXKIT_FUZZ_SECONDS", "600"))


def scalars() -> st.SearchStrategy[Any]:
    text = st.one_of(
        st.text(max_size=8), st.sampled_from([*HOSTILE_NAMES, "A=\0--share-net", "\ud800"])
    )
    return st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), text)


HOSTILE_NAMES = [
    "", ".", "..", "/", "../private.tar", "a/../../private.tar", "etc", "etc/kept", "etc/.wh.kept", ".wh..wh..opq", "l", "l/x", "l/l",
    "usr/bin", "bin/x", "/etc/passwd", "blobs/sha256", "index.json", "manifest.json", "../../../../../../canary", "d/" * 300 + "x", "x" * 256,
]  # fmt: skip
values = st.recursive(
    st.deferred(scalars),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(["digest", "config", "Env", "layers", "x"]), inner, max_size=3
        ),
    ),
    max_leaves=6,
)
KINDS = [
    tarfile.REGTYPE,
    tarfile.DIRTYPE,
    tarfile.SYMTYPE,
    tarfile.LNKTYPE,
    tarfile.CHRTYPE,
    tarfile.FIFOTYPE,
    tarfile.CONTTYPE,
    b"Z",
]
layer_members = st.lists(
    st.tuples(st.sampled_from(HOSTILE_NAMES), st.sampled_from(KINDS), st.sampled_from(HOSTILE_NAMES), st.binary(max_size=20), st.integers(0, 0o7777)),
    max_size=8,
)  # fmt: skip


def nodes(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of all fields of a document."""
    items = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    return [at, *(path for key, inner in items for path in nodes(inner, (*at, key)))]


@dataclass(frozen=True)
class Mutation:
    """What a stranger changed in an honest layout."""

    fields: list[tuple[str, int, Any]]
    layers: list[list[tuple[str, bytes, str, bytes, int]]]
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

        layers = [HONEST]
        for members in self.layers:
            made = [(member(name, kind, link, mode=mode), data if kind in (tarfile.REGTYPE, tarfile.CONTTYPE) else b"") for name, kind, link, data, mode in members]  # fmt: skip
            layers.append(tar(made))
        files = Layout(layers, change=change).files()
        if self.form == "saved":
            files = saved({f"{n}/layer.tar": each for n, each in enumerate(layers)})
            (manifest,) = json.loads(files["manifest.json"])
            files["manifest.json"] = json.dumps([change("manifest", manifest)]).encode()
        for which, where, byte in self.damage:
            name = sorted(files)[which % len(files)]
            data = bytearray(files[name])
            data[where % len(data) : where % len(data) + 1] = bytes([byte])
            files[name] = bytes(data)
        if self.form != "folder":
            links = [
                member(sorted(files)[which % len(files)], tarfile.SYMTYPE, to)
                for which, to in self.links
            ]
            return in_archive(path, files, *links)
        write(path, files)
        for which, to in self.links:
            place = path / sorted(files)[which % len(files)]
            place.unlink()
            with contextlib.suppress(FileNotFoundError, OSError):
                place.symlink_to(to)
        return path


mutations = st.builds(
    Mutation,
    st.lists(
        st.tuples(st.sampled_from(["config", "manifest", "index"]), st.integers(0, 60), values),
        max_size=3,
    ),
    st.lists(layer_members, max_size=3),
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 5000), st.integers(0, 255)), max_size=2),
    st.lists(st.tuples(st.integers(0, 9), st.sampled_from(HOSTILE_NAMES)), max_size=1),
    st.sampled_from(["folder", "archive", "saved"]),
)


def read_mutation(folder: Path, mutation: Mutation) -> bool:
    """Read a layout; return whether it was accepted. What is outside of it stays as it is and is never shown."""
    shutil.rmtree(folder, ignore_errors=True)
    outside = {"canary": CANARY, "private.tar": tar([(member("canary"), CANARY)])}
    write(folder, outside)
    image = mutation.make(folder / "image")
    started, accepted = time.monotonic(), True
    try:
        found_image = anyio.run(found, image)
        kept = [found_image.root.parent.name]
        assert all(
            isinstance(each, str) and "\0" not in each
            for pair in found_image.env.items()
            for each in pair
        )
    except (ImageNotFoundError, SandboxStartError):
        kept, accepted = [], False
    assert time.monotonic() - started < 10
    assert cached(folder) == kept
    assert not holds_the_canary(folder / "cache")
    assert sorted({*os.listdir(folder)} - {"cache"}) == ["canary", "image", "private.tar"]
    assert {name: (folder / name).read_bytes() for name in outside} == outside
    return accepted


def fuzz(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: settings) -> int:
    """Read mutated layouts; return how many were accepted."""
    accepted = 0
    monkeypatch.setenv("SANDBOXKIT_CACHE_DIR", str(tmp_path / "fuzz/cache"))

    @settings(
        more,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        database=None,
    )
    @given(mutations)
    def each(mutation: Mutation) -> None:
        nonlocal accepted
        accepted += read_mutation(tmp_path / "fuzz", mutation)

    each()
    remove_tree(tmp_path / "fuzz")
    return accepted


def test_a_layout_that_was_changed_anywhere_is_read_or_refused_and_shows_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert fuzz(tmp_path, monkeypatch, settings(max_examples=100)) > 0


@pytest.mark.nightly
@pytest.mark.timeout(1200)
def test_layouts_that_were_changed_anywhere_for_ten_minutes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    until, rounds = time.monotonic() + FUZZ_SECONDS, 0
    while time.monotonic() < until:
        rounds += fuzz(tmp_path, monkeypatch, settings(max_examples=300, derandomize=False))
    assert rounds > 0
