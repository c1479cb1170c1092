"""SWE tasks behind OpenEnv's server, and OpenEnv's own clients; see `make test-openenv`."""

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandboxkit import Session
from sandboxkit.integrations.swe import Task, load_tasks
from tests.frameworks_here import framework
from tests.openenv.conftest import live, serving
from tests.strangers.tasks import write

core = framework("openenv.core")
httpx = framework("httpx")

from openenv.cli._validation import validate_running_environment  # noqa: E402

from sandboxkit.integrations.openenv import swe_app  # noqa: E402

pytestmark = pytest.mark.anyio
RIGHT = {"command": "echo right > answer"}
CLIENTS = 3


@pytest.fixture
def tasks(tmp_path: Path) -> dict[str, Task]:
    for name in ("a", "b"):
        test = f'test "$(cat answer)" = right && test {name} != b\n'
        write(tmp_path / name, **{"tests/test.sh": test, "instruction.md": f"Do {name}."})
    return load_tasks(tmp_path)


@pytest.fixture
def url(session: Session, tasks: dict[str, Task]) -> Iterator[str]:
    with serving(swe_app(session, tasks, max_sessions=CLIENTS)) as url:
        yield url


def call(tool: str, **arguments: object) -> dict[str, object]:
    return {"type": "call_tool", "tool_name": tool, "arguments": arguments}


async def none_live(session: Session) -> None:
    """Wait until no sandbox is left: the server sees the end of a connection a moment later."""
    until = time.monotonic() + 30
    while await live(session):
        assert time.monotonic() < until
        await asyncio.sleep(0.05)


async def test_an_episode_over_the_websocket(url: str, session: Session) -> None:
    async with core.GenericEnvClient(base_url=url) as client:
        first = await client.reset(task_id="a", episode_id="7")
        assert (first.observation["instruction"], first.done) == ("Do a.", False)
        listed = (await client.step({"type": "list_tools"})).observation["tools"]
        assert [each["name"] for each in listed] == ["bash", "str_replace_editor", "submit"]
        assert "command" in listed[0]["input_schema"]["properties"]
        wrong = await client.step(call("bash", comand="true"))
        assert (wrong.metadata["error"], wrong.reward, wrong.done) == (True, None, False)
        await client.step(call("bash", **RIGHT))
        seen = await client.step(call("bash", command="cat answer"))
        assert (seen.observation["result"], seen.reward) == ("right\n", None)
        state = await client.state()
        assert (state["episode_id"], state["step_count"], state["task_id"]) == ("7", 3, "a")
        end = await client.step(call("submit"))
        assert (end.done, end.reward, end.metadata["verdict"]) == (True, 1.0, "passed")
        with pytest.raises(RuntimeError, match=r"call reset\(\) first"):
            await client.step(call("submit"))
    await none_live(session)


async def test_an_episode_over_mcp(url: str, session: Session) -> None:
    async with core.MCPToolClient(base_url=url) as client:
        assert (await client.reset(task_id="b")).observation.instruction == "Do b."
        assert (await client.list_tools())[0].name == "bash"
        assert (await client.call_tool("bash", command="echo hi"))["result"] == "hi\n"
        end = await client.call_tool("submit")
        assert (end["done"], end["reward"], end["metadata"]["verdict"]) == (True, 0.0, "failed")
    await none_live(session)


async def test_each_connection_has_an_episode_up_to_the_limit(url: str, session: Session) -> None:
    clients = [core.GenericEnvClient(base_url=url) for _ in range(CLIENTS)]
    await asyncio.gather(
        *(each.reset(task_id=name) for name, each in zip("aba", clients, strict=True))
    )
    writes = (each.step(call("bash", command=f"echo {n} > n")) for n, each in enumerate(clients))
    await asyncio.gather(*writes)
    seen = await asyncio.gather(*(each.step(call("bash", command="cat n")) for each in clients))
    assert [each.observation["result"] for each in seen] == ["0\n", "1\n", "2\n"]
    assert [(await each.state())["task_id"] for each in clients] == ["a", "b", "a"]
    async with core.GenericEnvClient(base_url=url) as one_more:
        with pytest.raises(RuntimeError, match="CAPACITY_REACHED"):
            await one_more.reset(task_id="a")
    assert await live(session) == CLIENTS
    clients[0]._ws.transport.abort()  # as when its machine is switched off
    await asyncio.gather(*(each.close() for each in clients[1:]))
    await none_live(session)


async def test_a_failure_of_the_infrastructure_has_no_reward(
    tasks: dict[str, Task], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:9")
    async with Session("docker") as session:
        with serving(swe_app(session, tasks)) as url:
            async with core.GenericEnvClient(base_url=url) as client:
                first = await client.reset(task_id="a")
    assert (first.done, first.reward, first.metadata["verdict"]) == (True, None, "infra_error")


async def test_openenv_finds_its_contract_kept(url: str) -> None:
    report = await asyncio.to_thread(validate_running_environment, url)
    assert report["passed"], report["summary"]
    async with httpx.AsyncClient(base_url=url) as http:
        listed = (await http.post("/swe/tasks", json={"split": "train"})).json()["tasks"]
        assert listed == [{"task_id": "a"}, {"task_id": "b"}]
        assert (await http.get("/swe/splits")).json() == [{"name": "train", "type": "train"}]
        # OpenEnv's /reset over HTTP has no session: the environment ends with the answer.
        first = (await http.post("/reset", json={"task_id": "b"}, timeout=60)).json()
        assert first["observation"]["instruction"] == "Do b."


async def test_a_task_that_is_not_there(url: str) -> None:
    async with core.GenericEnvClient(base_url=url) as client:
        for options in ({"task_id": "c"}, {}):
            with pytest.raises(RuntimeError, match=r"no task '.?'; there are a, b"):
                await client.reset(**options)


def test_the_program_serves_and_ends_at_ctrl_c(tmp_path: Path, tasks: dict[str, Task]) -> None:
    command = [
        sys.executable,
        "-m",
        "sandboxkit.integrations.openenv",
        str(tmp_path),
        "--port",
        "0",
    ]
    with subprocess.Popen(
        [*command, "--provider", "local"], stderr=subprocess.PIPE, text=True
    ) as program:
        assert program.stderr is not None
        url = next(line for line in program.stderr if "running on" in line).split()[4]
        with core.GenericEnvClient(base_url=url) as client:
            assert client.reset(task_id="a").observation["instruction"] == "Do a."
            program.send_signal(signal.SIGINT)
            said = program.stderr.read()
        assert (program.wait(), "Traceback" in said) == (0, False), said
