"""Problem packages, rows of data sets, recordings and configuration files of somebody else."""

import base64
import os
import pickle
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sandboxkit import ConfigurationError
from sandboxkit.errors import ReplayMismatchError
from sandboxkit.images import RegistryImage
from sandboxkit.integrations.rewards.programs import load_icpc, load_live_code_bench, load_polygon
from sandboxkit.integrations.swe import load_task
from sandboxkit.recording._replay import ReplayProvider
from tests.data_here import beside
from tests.strangers.tasks import in_time, put, write

CASES = beside(__file__)
CANARY = "canary-of-the-host"


def polygon(folder: Path, **changes: str) -> Path:
    values = {"count": "1", "stdin": "tests/%02d", "stdout": "tests/%02d.a", "checker": "check.py"}
    problem = CASES["problem"].format(**{**values, **changes})
    files = {"problem.xml": problem, "tests/01": "1", "tests/01.a": "1", "check.py": "pass"}
    return write(folder, **files)


@pytest.mark.parametrize("changes", CASES["polygon"])
def test_a_polygon_package_reads_nothing_outside(tmp_path: Path, changes: dict[str, str]) -> None:
    outside = tmp_path / "outside"
    write(outside, **dict.fromkeys(("key01", "key", "key.py"), CANARY))
    changes = {name: text.format(outside=outside) for name, text in changes.items()}
    package = polygon(tmp_path / "package", **changes)
    os.symlink("../outside/key.py", package / "link.py")
    with in_time(), pytest.raises(ConfigurationError) as caught:
        load_polygon(package)
    assert CANARY not in str(caught.value)


def icpc(folder: Path) -> Path:
    return write(folder, **{"data/secret/1.in": CANARY, "data/secret/1.ans": CANARY})


@pytest.mark.parametrize(
    ("make", "load", "place"),
    [
        *((polygon, load_polygon, place) for place in CASES["places"]["polygon"]),
        *((icpc, load_icpc, place) for place in CASES["places"]["icpc"]),
    ],
)
@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_a_link_or_pipe_in_a_package_is_refused(
    tmp_path: Path,
    make: Callable[[Path], Path],
    load: Callable[[Path], dict[str, Any]],
    place: str,
    kind: str,
) -> None:
    package = make(tmp_path / "package")
    assert load(package)["cases"]
    (package / place).rename(tmp_path / "outside")
    put(package, tmp_path / "outside", kind, place, "OUT")
    with in_time(), pytest.raises(ConfigurationError):
        load(package)


@pytest.mark.parametrize("settings", CASES["settings"])
def test_settings_of_icpc_that_are_no_numbers_are_refused(tmp_path: Path, settings: str) -> None:
    write(tmp_path, **{"data/secret/1.in": "", "data/secret/1.ans": "", "problem.yaml": settings})
    with pytest.raises(ConfigurationError, match="is no number"):
        load_icpc(tmp_path)


def packed(content: bytes) -> dict[str, str]:
    text = base64.b64encode(zlib.compress(content)).decode()
    return {"public_test_cases": "[]", "private_test_cases": text}


def test_an_honest_row_of_live_code_bench_is_read() -> None:
    cases = '[{"input": "1", "output": "2", "testtype": "stdin"}]'
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        task = load_live_code_bench(packed(pickle.dumps(cases, protocol)))
        assert [case["stdin"] for case in task["cases"]] == ["1"]


NO_ROWS = [b"\x80\x04r\xff\xff\xff\x7f.", b"cos\nsystem\n(S'true'\ntR.", b"not a pickle", b""]


@pytest.mark.parametrize("content", [*NO_ROWS, *map(pickle.dumps, (["[]"], "[" * 100_000))])
def test_a_hostile_row_of_live_code_bench_is_refused(content: bytes) -> None:
    with in_time(), pytest.raises(ConfigurationError, match="private_test_cases"):
        load_live_code_bench(packed(content))


def test_a_row_of_live_code_bench_cannot_take_all_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandboxkit.integrations.rewards.programs._loaders._MOST_BYTES", 1_000_000)
    with in_time(), pytest.raises(ConfigurationError, match="more than 1000000 bytes"):
        load_live_code_bench(packed(bytes(50_000_000)))


def test_a_task_s_settings_are_read_in_time(tmp_path: Path) -> None:
    write(tmp_path, **{"instruction.md": "Do.", "tests/test.sh": "", "task.toml": "a." * 50_000})
    with in_time(), pytest.raises(ConfigurationError, match="more than 32768 bytes"):
        load_task(tmp_path)


@pytest.mark.parametrize("digest", ["{outside}", "../outside", "0" * 63, "0" * 64 + "\n", ""])
def test_a_recording_names_contents_by_digests_alone(tmp_path: Path, digest: str) -> None:
    write(tmp_path, **{"outside": CANARY})
    replay = object.__new__(ReplayProvider)
    replay._path, replay._folder = "recording", tmp_path / "contents"
    with pytest.raises(ReplayMismatchError, match="no digest"):
        replay.load(digest.format(outside=tmp_path / "outside"))


@pytest.mark.parametrize("name", ["sandboxkit-snapshot:0123", "docker://sandboxkit-snapshot:a"])
def test_no_task_names_the_snapshot_of_somebody(name: str) -> None:
    with pytest.raises(ConfigurationError, match="not the name of an image of a registry"):
        RegistryImage(name)


def test_a_configuration_file_of_inspect_names_no_folder(tmp_path: Path) -> None:
    read = pytest.importorskip("sandboxkit.integrations.inspect._config").read
    file = tmp_path / "sandboxkit.yaml"
    for image in ("/", str(tmp_path), "~", "../x"):
        file.write_text(f"provider: local\nimage: {image!r}\n")
        with pytest.raises(ConfigurationError, match="not the name of an image"):
            read(str(file))
    file.write_text("provider: docker\nimage: python:3.11-slim\n")
    assert isinstance(read(str(file)).image, RegistryImage)
