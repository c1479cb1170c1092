"""Whatever a policy leaves behind or calls, it is graded: no exception, no mask, nothing left here."""

import asyncio
import contextlib
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from sandboxkit import Operation, Sandbox, SandboxInfo, Session
from sandboxkit.integrations._training.rollout_record import RolloutRecord
from sandboxkit.integrations.rewards import Outcome, Verdict, grade_in_fresh
from sandboxkit.integrations.swe import SweConfig, SweEnv, load_tasks
from sandboxkit.integrations.trl import SandboxEnvironments, SweEnvironments
from sandboxkit.integrations.trl._rollout import tools_of
from sandboxkit.integrations.trl._rollouts import _answer
from sandboxkit.testing.conformance._base import until
from tests.grpo.test_rollout import rollouts, row, run
from tests.rewards.corpus import DATA, read
from tests.strangers.tasks import write

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # the trainers', of many kinds
    pytest.mark.timeout(120),
]
ARTEFACT = "/workspace/work"

GIVEN = read(DATA / "hostile_workspaces.toml")
LEAVE, SAMPLES = GIVEN["left"], GIVEN["samples"]
"""Programs that run in the folder that is graded, and what a model may say."""
lefts = st.lists(st.sampled_from(sorted(LEAVE)), min_size=1, max_size=3)
texts = st.text(max_size=12) | st.sampled_from([*SAMPLES["texts"], "/\ud800", "/\udcff"])
values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.just(10**4000), st.floats(), texts),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=4,
)
calls = st.tuples(
    st.sampled_from(SAMPLES["tools"]),
    st.dictionaries(st.sampled_from(SAMPLES["names"]), values, max_size=6),
)
few = settings(
    max_examples=6,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def program(left: list[str]) -> str:
    return str(SAMPLES["program"]).replace("PARTS", repr([LEAVE[name] for name in left]))


def script(left: list[str]) -> str:
    return f"cd / && timeout 20 python3 - <<'END'\n{program(left)}\nEND\n"


def is_the_policys(verdict: Verdict) -> None:
    assert verdict.attributable_to == "policy", verdict
    assert verdict.outcome is Outcome.PASSED or verdict.reward == 0
    assert verdict.detail.isascii()


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with Session("local", disk_mb=32, pids=64) as session:
        yield session


@contextlib.contextmanager
def nothing_left(session: Session) -> Iterator[None]:
    yield

    def own() -> list[SandboxInfo]:
        tag = {"sandboxkit.session": session.id}
        return [each for each in session.list().result() if tag.items() <= each.tags.items()]

    until(lambda: not own(), "the sandbox of a single run goes after its result")
    assert [n for n in os.listdir(tempfile.gettempdir()) if "artefacts" in n] == []


async def judge(sandbox: Sandbox, row: Mapping[str, Any]) -> Verdict:
    await sandbox.exec(["cat", f"{ARTEFACT}/answer"], check=True, timeout=1)
    passed = (await sandbox.read_file(f"{ARTEFACT}/answer", max_bytes=1000)).decode() == "42"
    return Verdict(Outcome.PASSED if passed else Outcome.FAILED, float(passed))


@pytest.mark.parametrize(
    ("left", "whole"), [*((n, True) for n in LEAVE), *((n, False) for n in [*LEAVE][::4])]
)
def test_each_hostile_workspace_is_graded_afresh(session: Session, left: str, whole: bool) -> None:
    async def main() -> Verdict:
        agent = session.sandbox()
        await agent.exec(["python3", "-c", program([left])], cwd="/", timeout=20)
        artefact = [ARTEFACT if whole else f"{ARTEFACT}/answer"]
        limits = {"max_bytes": 64 << 20, "max_files": 5000}
        return await grade_in_fresh(
            agent, artefact, session.sandbox, lambda box: judge(box, {}), **limits
        )

    with nothing_left(session):
        verdict = asyncio.run(main())
    is_the_policys(verdict)
    if whole and left in GIVEN["outcomes"]:
        assert f"{verdict.outcome}, {verdict.trust}" == GIVEN["outcomes"][left], verdict


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tasks")
    test = 'test "$(head -c 9 work/answer)" = 42\n'
    for name, in_place in (("fresh", "false"), ("in-place", "true")):
        settings = f"[sandboxkit]\nin_place = {in_place}\n[verifier]\ntimeout_sec = 5\n"
        write(folder / name, **{"tests/test.sh": test, "task.toml": settings})
    return folder


@few
@given(left=lefts, called=st.lists(calls, max_size=4), task=st.sampled_from(["fresh", "in-place"]))
def test_an_swe_episode_ends_with_a_verdict(
    session: Session, folder: Path, left: list[str], called: list[tuple[str, Any]], task: str
) -> None:
    async def main() -> Verdict | None:
        async with SweEnv(session, load_tasks(folder), SweConfig(tool_timeout=20)) as env:
            await env.reset(task)
            assert not (await env.step("bash", {"command": script(left)})).done
            for name, wanted in called:
                step = await env.step(name, wanted)
                assert not step.done
                step.observation.encode()
                assert not (await env.step(name, json.dumps(wanted))).done
            return (await env.finish()).verdict

    with nothing_left(session):
        verdict = asyncio.run(main())
    assert verdict is not None
    is_the_policys(verdict)


def said(environment: Any, called: list[tuple[str, Any]]) -> None:
    tools = {tool.__name__: tool for tool in tools_of(environment)}
    for name, wanted in called:
        for each in (wanted, json.dumps(wanted)):
            message = _answer(
                tools, {"function": {"name": name, "arguments": each}}, environment._trace
            )
            message["content"].encode()


@few
@given(left=lefts, called=st.lists(calls, max_size=4), odd=values)
@example(left=["a full disk"], called=[], odd=None)
def test_trl_ends_with_a_verdict(
    folder: Path, left: list[str], called: list[tuple[str, Any]], odd: Any
) -> None:
    made = SandboxEnvironments(judge, provider="local", disk_mb=32, pids=64)
    tasks = SweEnvironments(load_tasks(folder), provider="local", disk_mb=32, pids=64)
    with made, tasks:
        for environment, row in ((made(), {}), (tasks(), {"task_id": "fresh"})):
            environment.reset(**row)
            environment.bash(script(left))
            said(environment, called)
            for message in (odd, {"function": odd}, {"function": {"name": odd}}):
                _answer({}, message, environment._trace)["content"].encode()
            verdict, _ = Operation(environment._grade()).result(60)
            trace = environment._trace
            about: dict[str, Any] = {"group": 0, "member": 0, "tokens": {}, "prompt": ""}
            about |= {name: getattr(trace, name) for name in ("seconds", "turns", "calls")}
            json.dumps(RolloutRecord(verdict=verdict, reward=None, **about).json()).encode()
            is_the_policys(verdict)


@settings(few, max_examples=8)
@given(left=lefts, called=st.lists(calls, min_size=1, max_size=3), odd=values)
def test_grpo_ends_with_a_verdict(
    session: Session, left: list[str], called: list[tuple[str, Any]], odd: Any
) -> None:
    messages: list[Any] = [{"name": name, "arguments": wanted} for name, wanted in called]
    turns = [
        "".join(f"<tool_call>{json.dumps(m)}</tool_call>" for m in each)
        for each in ([{"name": "bash", "arguments": {"command": script(left)}}], [*messages, odd])
    ]
    more = ["rollout.max_turns=3", "rollout.max_completion_tokens=20000"]
    more += ["engine.max_model_tokens=40000", "optimizer.max_tokens_per_row=40000"]
    subject, _ = rollouts(session, [*turns, "Done."], *more, f"rollout.artefact={ARTEFACT}/answer")
    with nothing_left(session):
        (made,) = run(subject, row())
    is_the_policys(made.verdict)
