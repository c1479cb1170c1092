"""Episodes of verifiers in our sandboxes, where it is installed: see `make test-frameworks`."""

import asyncio
import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sandboxkit import ConfigurationError, Sandbox, Session
from tests.art import json_server
from tests.docker_here import require_docker
from tests.frameworks_here import framework

vf = framework("verifiers.v1")

from sandboxkit.integrations.verifiers import SandboxkitRuntime, boxed  # noqa: E402

SOLUTION = "print(open('data/number').read())"
PROGRAMS = tomllib.loads((Path(__file__).parent / "programs.toml").read_text())

pytestmark = pytest.mark.anyio


@pytest.fixture
def model() -> Iterator[str]:
    """The URL of a model that says the same to everybody, as OpenAI's API does."""

    def answer(path: str, body: dict[str, Any]) -> tuple[int, object]:
        message = {"role": "assistant", "content": SOLUTION}
        return 200, {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "created": 1,
            "model": body["model"],
            "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
        }

    with json_server.serving(answer) as url:
        yield url


@pytest.fixture
def env(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(Path(__file__).parent / "plugins")

    def load(provider: str) -> Any:
        kind = vf.environment_class("box_task")
        config = kind.__orig_bases__[0].__args__[0]
        return vf.load_environment(
            config.model_validate({"taskset": {"id": "box_task"}, "provider": provider})
        )

    return load


@pytest.mark.parametrize("provider", ["local", "docker"])
async def test_an_episode_is_played_and_scored_in_a_sandbox_without_network(
    env: Any, model: str, provider: str
) -> None:
    if provider == "docker":
        require_docker()
    played = env(provider)
    client = vf.EvalClientConfig(base_url=model, api_key_var="NO_KEY")
    ctx = vf.ModelContext(model="scripted", client=client, sampling=vf.SamplingConfig())
    async with played.serving():
        [task] = played.taskset
        episode = await played.run_episode(task, ctx)
        [trace] = episode.traces
        assert [*episode.errors, *trace.errors] == []
        assert trace.reward == 1.0
        assert [node.message.content for node in trace.nodes][-1] == SOLUTION
        assert trace.info["sandbox"]["provider"] == provider
        read = vf.WireTrace.model_validate_json(trace.model_dump_json())
        assert read.info["sandbox"]["id"] == trace.info["sandbox"]["id"]
        found = [info.id for info in await Sandbox.list(provider=provider)]
        assert trace.info["sandbox"]["id"] not in found


async def test_a_box_keeps_the_contract_of_a_runtime(model: str) -> None:
    data = vf.TaskData(prompt="-", network_allow=[], workdir="/job")
    async with Session("local") as session, boxed(session, vf.Task(data)) as box:
        assert (await box.run(["no-such-program"], {})).exit_code == 127
        await box.write("a/b", b"\0" * 100)
        assert await box.read("/job/a/b") == b"\0" * 100
        assert await box.read("a/b", max_bytes=100) == b"\0" * 100
        with pytest.raises(vf.SandboxError, match="over the 99 byte limit"):
            await box.read("a/b", max_bytes=99)
        with pytest.raises(vf.SandboxError, match="no such file"):
            await box.read("nowhere")
        live = await box.open_process(["cat"], {})
        await live.write(b"hello")
        assert await anext(live.stdout) == b"hello"
        assert await live.poll() is None
        await live.kill()
        assert await live.wait() == 137
        await box.run_background(["sh", "-c", "echo $NAME; sleep 600"], {"NAME": "it's"}, "log")
        async with asyncio.timeout(30):
            while await box.read("log") != b"it's\n":
                await asyncio.sleep(0.05)
        with pytest.raises(vf.SandboxError, match="'sleep' was not started"):
            await box.run_background(["sleep", "600"], {}, "no/such/log")
        # Of this machine's ports a program in it reaches those alone that it was given a URL of.
        port = model.rpartition(":")[2].removesuffix("/v1")
        inside = box.host_url(model).rpartition(":")[2].removesuffix("/v1")
        assert box.host_url("https://example.org/v1") == "https://example.org/v1"
        probed = await box.run(["python3", "-c", PROGRAMS["probe"], port, inside], {})
        assert json.loads(probed.stdout) == [int(inside)]
    with pytest.raises(vf.SandboxError, match="was stopped"):
        await box.run(["true"], {})


async def test_large_answers_come_through_on_many_connections() -> None:
    big = bytes(range(256)) * 20_000

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        size = len(big)
        await reader.readexactly(size)
        writer.write(big)
        await writer.drain()
        writer.close()

    task = vf.Task(vf.TaskData(prompt="-", network_allow=[]))
    async with (
        await asyncio.start_server(answer, "127.0.0.1", 0) as server,
        Session("local") as session,
        boxed(session, task) as box,
    ):
        port = server.sockets[0].getsockname()[1]
        inside = box.host_url(f"http://127.0.0.1:{port}").rpartition(":")[2]
        done = await box.run(["python3", "-c", PROGRAMS["talk"], inside], {})
        assert (done.exit_code, done.stderr) == (0, "")


async def test_what_cannot_be_done_is_said_before_a_sandbox_is_made() -> None:
    task = vf.Task(vf.TaskData(prompt="-", network_allow=["example.org"]))
    async with Session("local") as session:
        with pytest.raises(ConfigurationError, match="all of the internet or none"):
            async with boxed(session, task):
                pass
        box = SandboxkitRuntime(session.sandbox())
        with pytest.raises(vf.SandboxError, match="it is not started"):
            box.host_url("http://127.0.0.1:1/v1")
        await box.start()
        urls = [f"http://127.0.0.1:{port}/v1" for port in range(1, 9)]
        assert len({box.host_url(url) for url in urls}) == 8
        with pytest.raises(vf.SandboxError, match=r"has no port left for http://127\.0\.0\.1:9/v1"):
            box.host_url("http://127.0.0.1:9/v1")
