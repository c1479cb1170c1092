"""A fuzz of task folders: whatever is in them, nothing outside of them is shown."""

import contextlib
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandboxkit import ConfigurationError
from sandboxkit.images import RegistryImage
from sandboxkit.integrations.harbor import load_task as load_harbor
from sandboxkit.integrations.swe import Task, load_task, load_tasks
from tests.data_here import beside
from tests.strangers.tasks import CANARY, in_time, packed, put, write

pytestmark = pytest.mark.usefixtures("task_cache")


SAMPLES = {name: st.sampled_from(values) for name, values in beside(__file__).items()}
PATHS = st.lists(SAMPLES["names"], min_size=1, max_size=4).map("/".join)
STEPS = st.lists(SAMPLES["steps"], min_size=1, max_size=6).map("/".join)
TARGETS = st.one_of(PATHS, STEPS, SAMPLES["targets"])
CONTENT = st.one_of(st.text(max_size=40), SAMPLES["content"])
ENTRIES = st.one_of(
    st.tuples(st.just("file"), PATHS, CONTENT),
    st.tuples(st.just("link"), PATHS, TARGETS),
    st.tuples(st.just("pipe"), PATHS, st.just("")),
    st.tuples(st.just("folder"), PATHS, st.just("")),
)
Entries = list[tuple[str, str, str]]


def fill(folder: Path, outside: Path, entries: Entries) -> None:
    """Write what fits, as a task of somebody else: entries whose place is taken are left out."""
    write(folder)
    for kind, name, content in entries:
        path = folder / name
        # A link of an earlier entry may not be followed here, or this test would write outside.
        if not any(parent.is_symlink() for parent in [path, *path.parents]):
            with contextlib.suppress(OSError):
                put(folder, outside, kind, name, content)


@settings(max_examples=300)
@given(st.lists(ENTRIES, max_size=12))
def test_no_folder_shows_anything_outside_of_it(entries: Entries) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        outside, folder = Path(temporary, "outside"), Path(temporary, "tasks", "one")
        for name in ("secret", "instruction.md", "tests/test.sh"):
            (outside / name).parent.mkdir(parents=True, exist_ok=True)
            (outside / name).write_text(CANARY)
        fill(folder, outside, entries)
        before = sorted(outside.rglob("*"))
        loaders: tuple[Callable[[], list[Task]], ...] = (
            lambda: list(load_tasks(folder.parent).values()),
            lambda: [load_task(folder)],
            lambda: [load_harbor(folder)],
            lambda: [load_harbor(folder, image="default")],
        )
        for load in loaders:
            try:
                with in_time():
                    tasks = load()
                    sent = b"".join(map(packed, tasks))
            except ConfigurationError as error:
                tasks, sent = [], str(error).encode("utf-8", "surrogateescape")
            assert CANARY.encode() not in sent
            for task in tasks:
                assert task.image is None or isinstance(task.image, RegistryImage)
                assert (task.network, task.setup_network, task.test_network) == (None, None, None)
        assert sorted(outside.rglob("*")) == before
