"""Commands through the agent: start, streams, stdin, terminals, exit."""

import os
from collections.abc import AsyncIterator

import anyio
import pytest

from sandboxkit.errors import ConfigurationError
from sandboxkit.providers._agent.client import MOST_ALONG, AgentClient
from sandboxkit.types import Command, CommandFile, CommandSetup, PtySize, StdinItem, WholeInput
from tests.agent.conftest import Box, Run

pytestmark = pytest.mark.anyio


async def items(*values: StdinItem) -> AsyncIterator[StdinItem]:
    for value in values:
        yield value


@pytest.mark.parametrize("lists", [range(1, 18), range(1, 17)])
async def test_an_agent_that_cannot_set_up_gets_the_same_command_through_a_shell(
    box: Box, lists: range
) -> None:
    client = box.provider._known(box.id).client
    assert client is not None
    assert client.calls == bytes(range(1, 21))
    client.calls = bytes(lists)
    files = (CommandFile(f"{box.workdir}/program", b"#!/bin/sh\nulimit -f; ulimit -t\n", 0o555),)
    command = Command(
        ("./program",), setup=CommandSetup(files, {"fsize": (1024, 1024), "cpu": (2, 3)})
    )
    sent = await box.provider.set_up(box.id, command)
    assert (sent is command) == (17 in lists)
    run = Run()
    await box.provider.exec(box.id, sent, run.output)
    assert run.stdout == b"2\n2\n"


@pytest.mark.parametrize("agent", ["new", "forgetful", "old"])
async def test_a_file_that_commands_bring_again_is_sent_once(box: Box, agent: str) -> None:
    client = box.provider._known(box.id).client
    assert client is not None
    content = b"#!/bin/sh\necho right $1\nchmod 700 $0; echo echo wrong > $0 #" + bytes(1 << 19)
    if agent == "old":
        client.calls = bytes(range(1, 18))
    sent = []
    for argument in ("1", "2", "3"):
        if agent == "forgetful" and argument == "3":
            client.kept._known[content].number += 1
        files = (CommandFile(f"{box.workdir}/program", content, 0o555, reused=True),)
        before, run = client.moved[0], Run()
        command = Command((f"{box.workdir}/program", argument), setup=CommandSetup(files))
        await box.provider.exec(box.id, command, run.output)
        assert run.stdout == f"right {argument}\n".encode()
        sent.append(client.moved[0] - before > len(content))
    assert sent == {"new": [1, 0, 0], "forgetful": [1, 0, 1], "old": [1, 1, 1]}[agent]


async def test_an_agent_keeps_four_megabytes_of_contents_at_most(box: Box) -> None:
    async def run(letter: bytes) -> bytes:
        files = (CommandFile(f"{box.workdir}/file", letter * 900_000, 0o644, reused=True),)
        run, setup = Run(), CommandSetup(files)
        await box.provider.exec(
            box.id, Command(("head", "-c1", f"{box.workdir}/file"), setup=setup), run.output
        )
        return run.stdout

    letters = [bytes([n]) for n in b"abcdefghijklmnopqrst"]
    order = [
        *letters,
        *reversed(letters),
    ]  # the agent has dropped the older half of those expected there
    assert [await run(each) for each in order] == order
    client = box.provider._known(box.id).client
    assert client is not None
    assert len(client.kept._known) == 16


async def test_the_path_of_the_command_selects_the_program(box: Box) -> None:
    await box.sh("mkdir bin && printf '#!/bin/sh\\necho mine\\n' > bin/tool && chmod +x bin/tool")
    run = await box.exec("tool", env={"PATH": f"{box.workdir}/bin:/usr/bin:/bin"})
    assert run.stdout == b"mine\n"
    assert (await box.exec("bin/tool")).stdout == b"mine\n"


async def test_bytes_that_are_not_utf8_pass_unchanged(box: Box) -> None:
    odd = b"\xff\xfe\x00".replace(b"\x00", b"x").decode("utf-8", "surrogateescape")
    run = await box.exec("printf", "%s", odd)
    assert run.stdout == b"\xff\xfex"


@pytest.mark.parametrize("size", [0, 1, MOST_ALONG, MOST_ALONG + 1, 1 << 20])
async def test_a_stdin_that_is_known_is_delivered_completely_then_closed(
    box: Box, size: int
) -> None:
    data = bytes(range(1, 251)) * (size // 250 + 1)
    run = await box.exec("cat", stdin=WholeInput(data[:size]))
    assert run.stdout == data[:size]


async def test_a_short_stdin_is_sent_with_its_command(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    send, sent = AgentClient.post, list[int]()

    def post(self: AgentClient, frame: bytes, stream: int) -> None:
        sent.append(stream)
        send(self, frame, stream)

    async def never(self: AgentClient, frame: bytes, stream: int) -> None:
        raise AssertionError("data was sent apart")

    monkeypatch.setattr(AgentClient, "post", post)
    monkeypatch.setattr(AgentClient, "send_data", never)
    assert (await box.exec("cat", stdin=WholeInput(b"short"))).stdout == b"short"
    assert len(sent) == 1


async def test_an_error_of_the_stdin_iterator_is_raised_and_kills_the_command(box: Box) -> None:
    async def broken() -> AsyncIterator[StdinItem]:
        yield b"x"
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await box.sh("sleep 1000", stdin=broken())
    assert await box.processes() == []


async def test_a_background_child_that_keeps_a_terminal_open_does_not_delay_the_result(
    box: Box,
) -> None:
    with anyio.fail_after(60):
        run = await box.sh("trap '' HUP; sleep 1000 & echo done", pty=PtySize())
    assert run.stdout == b"done\r\n"


async def test_a_user_that_does_not_exist_is_refused(box: Box) -> None:
    with pytest.raises(ConfigurationError, match="nosuchuser"):
        await box.exec("true", user="nosuchuser")


async def test_a_command_may_run_as_another_user(user_box: Box) -> None:
    assert (await user_box.exec("id", "-un")).stdout == b"nobody\n"
    assert (await user_box.exec("id", "-un", user="root")).stdout == b"root\n"
    assert (await user_box.sh("echo $HOME", user="root")).stdout.decode().strip() == os.environ[
        "HOME"
    ]


async def test_orphans_are_reaped(box: Box) -> None:
    await box.sh("for i in 1 2 3 4 5; do setsid sh -c 'exit 0' & done; wait")
    with anyio.fail_after(60):  # the reaper of a command ends after it
        while (await box.sh("cat /proc/[0-9]*/stat | grep -c ') Z '")).stdout != b"0\n":
            await anyio.sleep(0.01)
