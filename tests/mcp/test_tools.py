"""What a model gets from the tools, through the protocol's own client."""

import base64

import anyio
import pytest
from mcp_types import ImageContent

from sandboxkit import Sandbox
from tests.mcp.conftest import connected, text

PS = {"command": "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"}
pytestmark = pytest.mark.anyio
PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
)


async def test_a_client_runs_commands_and_works_on_files_until_it_goes(tag: str) -> None:
    async with connected("-p", "local", "--tag", tag, "-e", "NAME=it's", "-w", "/job") as client:
        tools = [tool.name for tool in (await client.list_tools()).tools]
        assert tools == ["exec", "read_file", "write_file", "list_files"]
        assert await Sandbox.list(tag, provider="local") == []  # none until it is of use
        ran = await client.call_tool("exec", {"command": 'echo "$NAME"; pwd; echo no >&2; exit 3'})
        assert not ran.is_error  # how it ended is an outcome, whatever it is
        assert text(ran) == "it's\n/job\n[stderr]\nno\n[exit status 3]"
        assert ran.structured_content == {
            "returncode": 3,
            "stdout": "it's\n/job\n",
            "stderr": "no\n",
            "timed_out": False,
            "truncated": False,
        }
        wrote = await client.call_tool("write_file", {"path": "a/b.txt", "content": "één\ntwo\n"})
        assert text(wrote) == "wrote 10 bytes to /job/a/b.txt"
        read = await client.call_tool("exec", {"command": "cat b.txt -", "cwd": "a", "stdin": "3"})
        assert text(read) == "één\ntwo\n3\n[exit status 0]"
        assert text(await client.call_tool("read_file", {"path": "/job/a/b.txt"})) == "één\ntwo\n"
        assert text(await client.call_tool("list_files", {"path": "a"})).split() == [
            *("/job/a:", "1", "entries"),
            *("10", "b.txt"),
        ]
        assert len(await Sandbox.list(tag, provider="local")) == 1
    with anyio.fail_after(60):  # the client kills a server that is slow to end
        while await Sandbox.list(tag, provider="local"):
            await anyio.sleep(0.1)


async def test_answers_are_bounded_and_mistakes_say_what_is_wrong() -> None:
    async with connected("-p", "local", "--memory-mb", "256") as client:

        async def told(name: str, **arguments: object) -> str:
            answer = await client.call_tool(name, arguments)
            return f"{'ERROR ' * answer.is_error}{text(answer)}"

        much = await told("exec", command="seq 1000000; seq 10000 >&2; seq 20000 > /tmp/lines")
        assert len(much) < 70_000
        assert much.startswith("1\n2\n3\n")
        assert "the middle of a stream of more than 1048576 bytes was dropped" in much
        page = await told("read_file", path="/tmp/lines", first_line=3)
        assert page.startswith("3\n4\n")
        assert page.endswith("2002\n[lines 3 to 2002 of 20000; read on with first_line=2003]")
        for seconds in (0.5, 5, 25):  # a busy machine may not even print in the first
            late = await told("exec", command="echo begun; sleep 60", timeout=seconds)
            if late.startswith("begun"):
                break
        assert late == f"begun\n[killed: it ran past its timeout of {seconds:g} s]"
        assert "no such" in await told("exec", command="true", cwd="/nowhere")
        assert "no such" in await told("read_file", path="/nowhere")
        assert "20000 lines" in await told("read_file", path="/tmp/lines", first_line=30_000)
        await told("exec", command="head -c 5000 /dev/zero | tr '\\0' '\\377' > /tmp/bytes")
        assert "is not UTF-8 text but 5000 bytes" in await told("read_file", path="/tmp/bytes")
        code = f"open('/tmp/a.png', 'wb').write({PNG!r})"
        assert await told("exec", command="python3 -", stdin=code) == "[exit status 0]"
        [image] = (await client.call_tool("read_file", {"path": "/tmp/a.png"})).content
        assert isinstance(image, ImageContent)
        assert (image.mime_type, base64.b64decode(image.data)) == ("image/png", PNG)
        assert "ERROR" in await told("exec", command="true", timeout=0)
        assert "stdin or a file" in await told("exec", command="#" * 200_000)


async def test_a_sandbox_that_ended_says_so_and_so_does_its_successor(tag: str) -> None:
    async with connected("-p", "local", "--tag", tag) as client:
        await client.call_tool("exec", {"command": "touch before"})
        [first] = await Sandbox.list(tag, provider="local")

        lost = None

        async def work() -> None:
            nonlocal lost
            lost = await client.call_tool("exec", {"command": "exec -a ended sleep 600"})

        async with anyio.create_task_group() as group:
            group.start_soon(work)
            with anyio.fail_after(60):
                while "ended" not in text(await client.call_tool("exec", PS)):
                    await anyio.sleep(0.1)
            await (await Sandbox.from_id(first.id, provider="local")).stop()
        assert lost is not None
        assert lost.is_error
        assert "the sandbox ended" in text(lost)
        assert "next call gets a new, empty sandbox" in text(lost)
        after = text(await client.call_tool("exec", {"command": "ls"}))
        assert after.startswith("[This is a new sandbox")
        assert "before" not in after.partition("]")[2]
        assert text(await client.call_tool("exec", {"command": "ls"})) == "[exit status 0]"


async def test_a_call_that_its_client_gives_up_is_killed() -> None:
    async with connected("-p", "local") as client:

        async def until(running: bool) -> None:
            with anyio.fail_after(60):
                while running is not ("given-up" in text(await client.call_tool("exec", PS))):
                    await anyio.sleep(0.1)

        async with anyio.create_task_group() as group:
            sleep = {"command": "exec -a given-up sleep 600"}
            group.start_soon(client.call_tool, "exec", sleep)
            await until(True)
            group.cancel_scope.cancel()
        await until(False)
