"""Whole runs of a CodeAgent with a scripted model: state, tools, errors, the final answer."""

import re
import signal
import threading
import time
from typing import Any

import pytest
from smolagents import ActionStep, CodeAgent, LogLevel, Tool, tool

from sandboxkit import ConfigurationError, SandboxError, Session
from sandboxkit.integrations.smolagents import SandboxkitExecutor, SandboxLost, _executor
from tests.adapters_document import use
from tests.docker_here import require_docker
from tests.smolagents.conftest import ScriptedModel, living


@tool  # type: ignore[untyped-decorator]  # smolagents ships no types
def plus(left: int, right: int) -> int:
    """Add two numbers.

    Args:
        left: One.
        right: The other.
    """
    import os

    return left + right + int(os.environ.get("CARRY", "0"))


class Needy(Tool):  # type: ignore[misc]  # smolagents ships no types
    name = "needy"
    description = "Needs what nobody has."
    inputs: dict[str, Any] = {}  # noqa: RUF012 - as smolagents wants it
    output_type = "string"

    def forward(self) -> str:
        import no_such_module_of_anybody  # type: ignore[import-not-found]  # pyright: ignore

        return str(no_such_module_of_anybody.x)


def observed(coder: CodeAgent) -> list[str | None]:
    """What each step gave to look at."""
    return [step.observations for step in coder.memory.steps if isinstance(step, ActionStep)]


def agent(executor: SandboxkitExecutor, model: ScriptedModel, **how: Any) -> CodeAgent:
    how.setdefault("tools", [])
    return CodeAgent(model=model, executor=executor, verbosity_level=LogLevel.OFF, **how)


@pytest.mark.parametrize("provider", ["local", "docker"])
def test_a_run_has_state_tools_errors_and_a_final_answer(provider: str) -> None:
    if provider == "docker":
        require_docker()
    model = ScriptedModel(
        "import math\ndef area(r):\n    return math.pi * r * r\nprint('defined')\ncount = plus(40, 1)",
        "print('dividing', count)\ncount / 0",
        "count += 1\nround(area(given['radius']))",
        "final_answer({'count': count, 'pair': (count, {1})})\nprint('never')",
        "final_answer(plus(count, 1))",
    )
    with Session(provider, env={"CARRY": "0"}) as session:
        with agent(SandboxkitExecutor(session), model, tools=[plus]) as coder:
            answer = coder.run("Go.", additional_args={"given": {"radius": 2}})
            assert answer == {"count": 42, "pair": (42, {1})}
            assert observed(coder)[1] == "Execution logs:\ndividing 41\n"
            assert len(living(session)) == 1
            # The next run of the agent goes on in the same process, with its tools defined anew.
            assert coder.run("Again.", reset=False) == 43
        assert living(session) == []
        with pytest.raises(ConfigurationError, match="cleaned up"):
            coder.run("Once more.")
    assert model.seen[1].startswith("Observation:\nExecution logs:\ndefined\nLast output from")
    assert re.search(r'"<cell \d+>", line 2, in <module>\n    count / 0', model.seen[2])
    assert "ZeroDivisionError: division by zero" in model.seen[2]
    assert "Last output from code snippet:\n13" in model.seen[3]


def test_a_slow_step_is_told_and_keeps_its_state(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    def limit(number: int) -> None:
        """Give only the steps that go on too little time."""
        seconds = {0: (2.5, 60.0), 2: (0.5, 0.5)}.get(number, (60.0, 60.0))
        executor._timeout, grace = seconds
        monkeypatch.setattr(_executor, "_GRACE_SECONDS", grace)

    stubborn = "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass"
    model = ScriptedModel(
        "print('begun')\nx = plus(1, 1)\nimport time\ntime.sleep(600)",
        "x",
        stubborn,
        "x",
        "final_answer(plus(y, 1))",
        before=limit,
    )
    executor = SandboxkitExecutor(session)
    with agent(executor, model, tools=[plus]) as coder:
        assert coder.run("Go.", additional_args={"y": 2}) == 3
    assert "ran longer than 2.5 seconds and was interrupted" in model.seen[1]
    assert "Last output from code snippet:\n2" in model.seen[2]
    assert "so its Python process was killed" in model.seen[3]
    assert "All variables, functions and imports of earlier steps are gone" in model.seen[3]
    assert "NameError: name 'x' is not defined" in model.seen[4]


def test_an_outage_ends_the_run_and_is_not_shown_to_the_model(session: Session) -> None:
    def stop(number: int) -> None:
        for sandbox_id in living(session) if number else ():
            session.from_id(sandbox_id).result().stop().result()

    model = ScriptedModel("x = 1", "x", "never", before=stop)
    executor = SandboxkitExecutor(session)
    coder = agent(executor, model)
    with pytest.raises(SandboxLost) as lost:
        coder.run("Go.")
    assert isinstance(lost.value.__cause__, SandboxError)
    assert len(model.seen) == 2
    with pytest.raises(SandboxError, match="no sandbox"), executor:
        executor("1")


@pytest.mark.nightly
def test_ctrl_c_ends_the_step_and_the_next_has_the_tools_and_variables(session: Session) -> None:
    with SandboxkitExecutor(session) as executor:
        executor.send_variables({"given": 41})
        executor.send_tools({"plus": plus})
        main = threading.get_ident()

        def interrupt() -> None:
            look = ["sh", "-c", "test -e /tmp/sleeps"]
            while executor.sandbox.exec(look).result().returncode:
                time.sleep(0.05)
            signal.pthread_kill(main, signal.SIGINT)

        threading.Thread(target=interrupt).start()
        with pytest.raises(KeyboardInterrupt):
            executor("import time; open('/tmp/sleeps', 'w'); time.sleep(600)")
        assert executor("plus(given, 1)").output == 42
        # The same kernel, which a process of its own holds.
        count = ["sh", "-c", "cat /proc/[0-9]*/comm | grep -cx python3"]
        assert executor.sandbox.exec(count).result().stdout == "2\n"


def test_a_value_that_cannot_be_sent_is_refused_by_name(session: Session) -> None:
    with SandboxkitExecutor(session) as executor:
        with pytest.raises(Exception, match=r"'handle' cannot be sent to a sandbox: .*object"):
            executor.send_variables({"fine": 1, "handle": object()})
        with pytest.raises(ConfigurationError, match=r"no_such_module_of_anybody.*='internet'"):
            executor.send_tools({"needy": Needy()})
        with pytest.raises(ConfigurationError, match="'helper' is an agent"):
            executor.send_tools({"helper": agent(executor, ScriptedModel())})  # pyright: ignore
    with pytest.raises(ConfigurationError, match="timeout=0"):
        SandboxkitExecutor(session, timeout=0)


def test_a_failed_start_is_not_a_step_of_the_model(session: Session) -> None:
    with Session("local", image="/no/such/image") as other:
        with pytest.raises(SandboxError, match="/no/such/image"), SandboxkitExecutor(other) as made:
            made("1")
        assert living(other) == []
    for python, output in (("no-python", "no-python"), ("false", "cannot start with 'false'")):
        executor = SandboxkitExecutor(session, python=python)
        with pytest.raises(SandboxError, match=output), executor:
            executor("1")


def test_the_lines_of_the_document_run() -> None:
    model = ScriptedModel("final_answer(6 * 7)")
    names: dict[str, Any] = {"model": model}
    exec(use("smolagents").replace('"docker"', '"local"'), names)
    assert names["coder"].memory.steps[-1].action_output == 42
