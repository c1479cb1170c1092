"""Each check of killing, cleaning up and isolating fails on a provider that gets it wrong."""

import contextlib
import inspect
import os
import shutil
import signal
import time
from collections.abc import Iterator
from functools import partial
from importlib import import_module
from pathlib import Path

import pytest

from sandboxkit import Operation, SandboxError, Session, Volume, testing
from sandboxkit.provider import Provider
from sandboxkit.testing import FakeProvider
from sandboxkit.testing.conformance import ProviderConformance, _base, kill
from sandboxkit.testing.conformance.mounts import example_dataset
from sandboxkit.testing.fake import FakeBox, kill_tree
from sandboxkit.types import SandboxSpec
from tests.conformance import mutants, port_mutants, weakened
from tests.conformance.hooks import FakeHooks
from tests.data_here import beside

_TREES = {**kill._TREES, **kill._HIDDEN}

FAILURES = (
    AssertionError,
    SandboxError,
    TimeoutError,
    BrokenPipeError,  # the command whose input it is was lost
    RuntimeError,  # asyncio's and anyio's own, which a provider must not let out
    pytest.fail.Exception,
)
"""How a check fails; any other error means that the check itself is broken."""


CASES = [
    (module, mutant, check, tree)
    for module, found in beside(__file__, "mutants.toml").items()
    for mutant, checks in found.items()
    for check, _, tree in (each.rstrip("]").partition("[") for each in checks)
]
"""Where each mutant is, its name, a check that fails on it, and the tree that it kills, if it is about one."""

# One look may find everything, on a machine that is busy enough.
_CHANCES = {"KillsInOneSweep": 5}


@pytest.fixture(scope="module", autouse=True)
def what_weakened_providers_need() -> Iterator[None]:
    """Removed after the last of these tests."""
    yield
    for folder in weakened.made:
        shutil.rmtree(folder)


@pytest.fixture
def folders(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Path]]:
    """The folders of all fake sandboxes that were made; what mutants leave there is removed."""
    made: list[Path] = []
    start = FakeBox.start

    async def recording(self: FakeBox, spec: SandboxSpec) -> None:
        await start(self, spec)
        made.append(self.folder)

    monkeypatch.setattr(FakeBox, "start", recording)
    yield made
    for descriptor in mutants.LeaksADescriptor.leaked:
        os.close(descriptor)
    mutants.LeaksADescriptor.leaked.clear()
    for folder in made:
        Operation(kill_tree(f"box:{folder}", None)).result(60)
        # What a mutant spared may have lost its marker and its parent, but not its directory.
        while pids := _working_in(folder):
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)
        shutil.rmtree(folder, ignore_errors=True)


def _working_in(folder: Path) -> list[int]:
    found = []
    for link in Path("/proc").glob("[0-9]*/cwd"):
        with contextlib.suppress(OSError):
            if os.readlink(link).startswith(f"{folder}/"):
                found.append(int(link.parent.name))
    return found


@pytest.mark.parametrize(
    ("module", "name", "check", "tree"),
    # What forks faster than a mutant kills takes the processes that other tests need.
    [
        pytest.param(*case, marks=pytest.mark.alone) if case[1] in _CHANCES else case
        for case in CASES
    ],
    ids=[f"{name}-{check}-{tree or None}" for _, name, check, tree in CASES],
)
def test_the_check_fails_on_its_mutant(
    module: str,
    name: str,
    check: str,
    tree: str,
    folders: list[Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_base.until, "__defaults__", (3.0,))
    place = testing if module == "fake" else import_module(f"tests.conformance.{module}")
    mutant = getattr(place, name)
    sooner = {"exec.DEADLINE": 5.0, "neighbours.DEADLINE": 5.0, "ports.DEADLINE": 2.0}
    sooner |= {"silence.DEADLINE": 5.0, "starts._UNDONE": 3.0, "transfers._SETTLED": 1.0}
    for constant, seconds in sooner.items():
        monkeypatch.setattr(f"sandboxkit.testing.conformance.{constant}", seconds)
    if issubclass(mutant, port_mutants.Patched):
        monkeypatch.setattr(*mutant.patch)
    make = partial(FakeProvider, mutant) if issubclass(mutant, FakeBox) else mutant

    class Suite(FakeHooks, ProviderConformance):
        silence_bound = 4.0
        spec = "sandboxkit.testing:FakeProvider"

        @classmethod
        def make_provider(cls) -> Provider:
            made: Provider = make()
            return made

    # In a store of the test's own, and before the provider looks for it.
    monkeypatch.setenv("SANDBOXKIT_STATE_DIR", str(tmp_path / "state"))
    dataset, mounts = None, {}
    if module == "weakened_mounts":
        dataset = example_dataset(tmp_path / "dataset")
        mounts = {"/data": dataset, "/workspace/given": dataset}
    provider = make()
    session = Session(provider, tags={"conformance": _base.token()}, mounts=mounts)
    try:
        sandbox = session.sandbox().start().result(30)
        large = tmp_path / "large" / "file"
        large.parent.mkdir()
        large.write_bytes(bytes(30 << 20))
        values: dict[str, object] = {
            **dict.fromkeys(("provider", "mounting", "writing"), provider),
            **dict.fromkeys(("session", "taking", "each", "pausing"), session),
            **dict.fromkeys(("sandbox", "shared", "mounted"), sandbox),
            **{"dataset": dataset, "volume": Volume("test"), "tree": _TREES.get(tree)},
            **{"large": large, "tmp_path": tmp_path, "monkeypatch": monkeypatch},
            **{"end": "close", "delay": 0.05, "folder": f"/workspace/{_base.token()}"},
        }
        method = getattr(Suite(), check)
        arguments = {each: values[each] for each in inspect.signature(method).parameters}
        if "folder" in arguments:
            sandbox.exec(["mkdir", str(values["folder"])], check=True).result(30)
        for _ in range(_CHANCES.get(name, 1)):
            try:
                method(**arguments)
            except FAILURES:
                break
        else:
            pytest.fail(f"{check} passes on {name}")
    finally:
        try:
            session.close().result(30)
        except Exception:  # noqa: BLE001 - closing through a mutant may fail; `folders` cleans up
            pass
        Operation(provider.aclose()).result(10)
        while port_mutants.leaked:
            Operation(port_mutants.leaked.pop()()).result(10)


def test_every_check_named_here_passes_on_a_good_provider_elsewhere() -> None:
    missing = {check for _, _, check, _ in CASES if not hasattr(ProviderConformance, check)}
    assert not missing
