"""Rows in SWE-bench's format: the package swebench decides, on what the agent left in the repository."""

import json
import subprocess
import sys
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sandboxkit import (
    ConfigurationError,
    MissingExtraError,
    ProviderUnavailableError,
    Session,
    Snapshot,
)
from sandboxkit.integrations.swe import SweEnv, Task, load_tasks, try_tasks
from sandboxkit.integrations.swe._swe_bench import resolved
from tests.data_here import beside
from tests.docker_here import require_docker
from tests.local_here import require_local

DATA = beside(__file__)
KEPT, NEW = ["tests/test_kept.py"], ["tests/test_add.py", "tests/test_files.py"]
ROW = {
    "instance_id": "a__b-1",
    "repo": "a/b",
    "base_commit": "HEAD",
    "problem_statement": "add() subtracts.",
    "patch": "diff --git a/calc.py b/calc.py\n",
    "test_patch": "diff --git a/t.py b/t.py\n",
    "FAIL_TO_PASS": NEW,
    "PASS_TO_PASS": KEPT,
    "eval_script": "true",
    "log_parser": "parse_log_pytest",
    "eval_type": "pass_and_fail",
    "hints_text": None,
}
pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SANDBOXKIT_CACHE_DIR", str(tmp_path / "cache"))


@contextmanager
def repository(provider: str) -> Iterator[tuple[Snapshot, dict[str, Any]]]:
    """An image with a repository, and a row of it."""
    with Session(provider, tags=("swe-bench-tests",)) as session, session.sandbox() as sandbox:
        script = DATA["repository"]["script"]
        sandbox.exec(["bash", "-c", script], check=True).result()
        base, gold, test = (
            sandbox.read_file(f"/tmp/{name}").result().decode() for name in ("base", "gold", "test")
        )
        script = DATA["repository"]["eval"].strip().replace("{base}", base.strip())
        columns = {"base_commit": base.strip(), "patch": gold, "test_patch": test}
        sandbox.exec(["rm", "/tmp/base", "/tmp/gold", "/tmp/test"], check=True).result()
        image = sandbox.snapshot("swe-bench-row").result()
        yield image, ROW | columns | {"eval_script": script.replace("{test}", test)}
    image.delete().result()


@pytest.fixture(scope="module")
def made() -> Iterator[tuple[Snapshot, dict[str, Any]]]:
    require_local()
    with repository("local") as made:
        yield made


def loaded(image: Snapshot, row: dict[str, Any]) -> Task:
    (task,) = load_tasks([row], image="default").values()
    return replace(task, image=image)


async def test_the_gold_patch_has_the_reward_1_and_no_work_0(
    made: tuple[Snapshot, dict[str, Any]],
) -> None:
    image, row = made
    config = {"test_cmd": DATA["repository"]["test_cmd"], "log_parser": "parse_log_pytest"}
    rows = {
        "scripts": row,
        "of JSON": row | {"FAIL_TO_PASS": json.dumps(NEW), "PASS_TO_PASS": json.dumps(KEPT)},
        "of SWE-rebench": {
            name: row[name] for name in row if "eval" not in name and name != "log_parser"
        }
        | {"install_config": json.dumps(config), "PASS_TO_PASS": []},
    }
    tasks = {
        name: replace(loaded(image, each | {"instance_id": name}), id=name)
        for name, each in rows.items()
    }
    async with Session("local") as session:
        found = {each.task: each async for each in try_tasks(session, tasks)}
    assert {name: each.status for name, each in found.items()} == dict.fromkeys(rows, "fine"), found


def test_the_command_line_tries_the_rows_of_a_file(tmp_path: Path) -> None:
    require_docker()
    with repository("docker") as (image, row):
        (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n")
        command = ["tasks", "oracle", str(tmp_path / "rows.jsonl"), "-p", "docker", "--json"]
        command += ["--image", image.id.replace("snapshot-", "sandboxkit-snapshot:")]
        done = subprocess.run([sys.executable, "-m", "sandboxkit", *command], capture_output=True)
    trial = json.loads(done.stdout)
    assert (trial["oracle"], trial["nop"], done.returncode) == (1, 0, 0), (trial, done.stderr)


@pytest.mark.parametrize("work", DATA["work"], ids=lambda work: work["name"])
async def test_what_the_agent_left_is_graded(
    made: tuple[Snapshot, dict[str, Any]], work: dict[str, Any]
) -> None:
    image, row = made
    async with Session("local") as session, SweEnv(session, {"one": loaded(image, row)}) as env:
        assert (await env.reset("one")).observation == "add() subtracts."
        assert (await env.step("bash", {"command": "! ls /tests /solution"})).error is False
        script = work["script"]
        if "fix" in work:
            fix = b64encode(row["patch"].encode()).decode()
            script = f"echo {fix} | base64 -d | git apply && git add -AN\n{script}"
        step = await env.step("bash", {"command": script})
        end = await env.finish()
    assert end.verdict is not None
    assert end.reward == work["reward"], (step.observation, end.verdict)
    assert work.get("says", "") in end.verdict.detail
    assert end.verdict.trust == "shared"


async def test_a_broken_script_is_not_the_agents_fault(
    made: tuple[Snapshot, dict[str, Any]],
) -> None:
    image, row = made
    async with Session("local") as session:
        broken = {"a": loaded(image, row | {"eval_script": "exit 1"})}
        (found,) = [each async for each in try_tasks(session, broken)]
    assert (found.status, found.oracle) == ("unknown", None)


async def test_swebench_reads_logs_of_other_languages() -> None:
    cases = {case["parser"]: case for case in DATA["logs"]}
    rows = (
        ROW
        | {"instance_id": name, "log_parser": name, "PASS_TO_PASS": [case["passed"]]}
        | {"FAIL_TO_PASS": [case["passed"], case["failed"]]}
        for name, case in cases.items()
    )
    tasks = load_tasks(rows)
    for name, task in tasks.items():
        log = f": '>>>>> Start Test Output'\n{cases[name]['log']}\n: '>>>>> End Test Output'\n"
        assert await resolved(task, log) == (False, f"FAIL_TO_PASS {cases[name]['failed']}"), name
    name = "parse_log_gotest"
    assert (await resolved(tasks[name], cases[name]["log"]))[0] is None, "without marks"


def test_rows_of_other_data_sets_are_refused_by_name() -> None:
    cases, refused = DATA["refused"], dict[str, ConfigurationError]()
    rows = [ROW | {"instance_id": f"row {n}"} | each["columns"] for n, each in enumerate(cases, 2)]
    assert list(load_tasks([ROW, *rows], refused=refused)) == ["a__b-1"]
    assert len(refused) == len(cases)
    for number, each in enumerate(cases, 2):
        assert each["says"] in str(refused[f"row {number}"])
    with pytest.raises(ConfigurationError, match=r"task 'row 3'.*R2E-Gym"):
        load_tasks(rows[1:])


def test_the_package_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandboxkit.integrations.swe._swe_bench.PACKAGE", "not-installed")
    with pytest.raises(MissingExtraError, match=r"sandboxkit-sdk\[swebench\]"):
        load_tasks([ROW])


def test_files_and_libraries_give_the_same_tasks(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    table = pyarrow.Table.from_pylist([ROW])
    folder = tmp_path / "repository" / "data"
    folder.mkdir(parents=True)
    parquet.write_table(table, folder / "test-00000-of-00001.parquet")
    (folder / "dev.jsonl").write_text(json.dumps(ROW | {"instance_id": "a__dev-1"}) + "\n")
    (tmp_path / "rows.json").write_text(json.dumps([ROW]))
    expected = load_tasks([ROW])
    for source in (folder.parent, tmp_path / "rows.json", table.to_pandas().to_dict("records")):
        assert load_tasks(source) == expected
    assert list(load_tasks(folder.parent, split="dev")) == ["a__dev-1"]
    assert expected["a__b-1"].image == "swebench/sweb.eval.x86_64.a_1776_b-1:latest"
    named = load_tasks([ROW | {"docker_image": "x/y:1"}], allow_network="internet")["a__b-1"]
    assert (named.image, named.network, named.test_network) == ("x/y:1", "internet", "internet")
    with pytest.raises(ConfigurationError, match="in_place"):
        load_tasks([ROW], in_place=True)
    with pytest.raises(ConfigurationError, match="another row has the same instance_id"):
        load_tasks([ROW, ROW])


@pytest.mark.parametrize(("status", "said"), [(-9, ""), (1, "MemoryError\n")])
async def test_a_machine_that_cannot_run_swebench_is_no_fault_of_the_policy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int, said: str
) -> None:
    (tmp_path / "spec.json").write_text(json.dumps({"row": ROW}))
    task = Task(id="a", instruction="", tests=tmp_path / "tests")
    program = tmp_path / "program"
    program.write_text(
        f"#!/bin/sh\ncat >/dev/null\nprintf '{said}' >&2\n"
        + ("exit 1" if said else f"kill {status} $$")
    )
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    with pytest.raises(ProviderUnavailableError, match="swebench ended with status"):
        await resolved(task, "log")
