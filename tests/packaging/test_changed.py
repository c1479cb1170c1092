"""A part of CI that takes minutes runs where a file of it has changed since it passed."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import changed
from tests.conftest import pytest_xdist_make_scheduler

ROOT = Path(__file__).resolve().parents[2]


def test_the_files_of_each_part_are_there_and_make_has_its_target() -> None:
    makefile = (ROOT / "Makefile").read_text()
    (of_ci,) = re.findall(r'^parts="(.*)"$', (ROOT / ".ci" / "run").read_text(), re.MULTILINE)
    assert of_ci.split() == list(changed.PARTS)
    assert f"\nPARTS := {of_ci}\n" in makefile
    for target, paths in changed.PARTS.items():
        assert changed.digest(paths)
        assert f"\n{target}:" in makefile
        assert f"tests.changed --record {target}" in makefile
    assert changed.passed(changed.RECORD.read_text()).keys() <= changed.PARTS.keys()


def test_what_make_test_leaves_out_is_run_by_the_part_that_has_its_files() -> None:
    dry_run = ["make", "--dry-run", "test", *changed.PARTS]
    done = subprocess.run(dry_run, cwd=ROOT, capture_output=True, text=True, check=True)
    output = done.stdout.replace("\\\n", "")
    runs = re.compile(r" -m pytest (.*?)(?:;|$)", re.MULTILINE)
    together = runs.findall(output)[0]
    alone = next(run for run in runs.findall(output) if "'alone" in run)
    left_out = set(re.findall(r"--ignore=(\S+)", together))
    marked = re.compile(r"pytest\.mark\.alone")
    apart = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "tests").rglob("test_*.py")
        if marked.search(path.read_text()) and str(path.relative_to(ROOT)) not in alone.split()
    }
    assert apart
    assert {"tests/e2b", "tests/rewards/test_judge.py"} <= left_out
    before, *recorded = re.split(r"tests\.changed --record (test-\w+)", output)
    for text, target in zip([before, *recorded[1::2]], recorded[::2], strict=False):
        for words in map(str.split, runs.findall(text)):
            own = [
                word for word in words if any(map(Path(word).is_relative_to, changed.PARTS[target]))
            ]
            left_out -= {*own}
            if "'alone" in words:
                apart = {file for file in apart if not any(map(Path(file).is_relative_to, own))}
    assert (left_out, apart) == (set(), set())


def test_the_digest_shows_another_content_another_name_and_a_new_file(tmp_path: Path) -> None:
    folder = tmp_path / "part"
    (folder / "__pycache__").mkdir(parents=True)
    (folder / "a.py").write_text("1")
    seen = [changed.digest(["part"], tmp_path)]
    (folder / "__pycache__" / "a.pyc").write_text("compiled")
    assert changed.digest(["part"], tmp_path) == seen[0]
    (folder / "a.py").write_text("2")
    seen.append(changed.digest(["part"], tmp_path))
    (folder / "a.py").rename(folder / "b.py")
    seen.append(changed.digest(["part"], tmp_path))
    (folder / "c.py").write_text("")
    seen.append(changed.digest(["part"], tmp_path))
    assert len(set(seen)) == 4
    with pytest.raises(FileNotFoundError, match="nothing"):
        changed.digest(["nothing"], tmp_path)


def test_a_part_that_passed_is_the_same_until_a_file_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = tmp_path / "passed.txt"
    record.write_text("# a comment\nother 12\n")
    monkeypatch.setattr(changed, "RECORD", record)
    assert changed.main(["test-vllm"]) == 0
    assert changed.main(["--record", "test-vllm"]) == 0
    assert changed.main(["test-vllm"]) == changed.SAME == 3
    assert changed.passed(record.read_text()).keys() == {"other", "test-vllm"}
    record.write_text(re.sub("test-vllm .", "test-vllm x", record.read_text()))
    assert changed.main(["test-vllm"]) == 0


def test_ci_knows_the_exit_status_of_a_part_that_is_the_same() -> None:
    assert f"((status == {changed.SAME}))" in (ROOT / ".ci" / "run").read_text()


def test_an_unknown_part_is_refused_with_the_parts_there_are() -> None:
    command = [sys.executable, "-m", "tests.changed", "test-all"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1
    assert "|".join(changed.PARTS) in done.stderr


def test_tests_of_one_file_run_in_all_processes_where_a_target_says_load(
    pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pytestconfig.option, "tx", ["popen"])
    monkeypatch.setattr(pytestconfig.option, "dist", "load")
    assert pytest_xdist_make_scheduler(pytestconfig, None) is None
    monkeypatch.setattr(pytestconfig.option, "dist", "loadfile")
    assert pytest_xdist_make_scheduler(pytestconfig, None) is not None
