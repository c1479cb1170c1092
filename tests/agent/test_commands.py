"""Commands through the agent: start or an error that says why, streams, terminals, end and usage."""

import errno
import os
from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest

from sandboxkit import types
from sandboxkit.errors import CommandStartError, ConfigurationError, SandboxStartError
from sandboxkit.providers._agent.client import MOST_ALONG, AgentClient
from tests.agent.conftest import PROGRAMS, Box, NamespaceProvider, Run, made, until

pytestmark = pytest.mark.anyio


WAITS = "until test -e {}; do sleep 0.01; done"
PRINTS = f"{WAITS.format('go')}; for n in 1 2 3; do echo $n; echo $n >&2; done; echo all >all; mv all done"
"""Once its command has ended, it prints to both streams, and then makes a file."""


@pytest.mark.parametrize("lists", [range(1, 18), range(1, 17)])
async def test_an_agent_without_setups_gets_them_through_a_shell(box: Box, lists: range) -> None:
    client, run = box.client, Run()
    assert client.calls == bytes(range(1, 21))
    client.calls = bytes(lists)
    files = (
        types.CommandFile(f"{box.workdir}/program", b"#!/bin/sh\nulimit -f; ulimit -t\n", 0o555),
    )
    setup = types.CommandSetup(files, {"fsize": (1024, 1024), "cpu": (2, 3)})
    command = types.Command(("./program",), setup=setup)
    sent = await box.inner.set_up(command)
    assert (sent is command) == (17 in lists)
    await box.inner.exec(sent, run.output)
    assert run.stdout == b"2\n2\n"


@pytest.mark.parametrize("agent", ["new", "forgetful", "old"])
async def test_a_file_that_commands_bring_again_is_sent_once(box: Box, agent: str) -> None:
    client, path, sent = box.client, f"{box.workdir}/program", []
    content = b"#!/bin/sh\necho right $1\nchmod 700 $0; echo echo wrong > $0 #" + bytes(1 << 19)
    if agent == "old":
        client.calls = bytes(range(1, 18))
    for argument in ("1", "2", "3"):
        if agent == "forgetful" and argument == "3":
            client.kept._known[content].number += 1
        setup = types.CommandSetup((types.CommandFile(path, content, 0o555, reused=True),))
        before = client.moved[0]
        run = await box.exec(path, argument, setup=setup)
        assert run.stdout == f"right {argument}\n".encode()
        sent.append(client.moved[0] - before > len(content))
    assert sent == {"new": [1, 0, 0], "forgetful": [1, 0, 1], "old": [1, 1, 1]}[agent]


async def test_an_agent_keeps_four_megabytes_of_contents_at_most(box: Box) -> None:
    path = f"{box.workdir}/file"
    letters = [bytes([n]) for n in b"abcdefghijklmnopqrst"]
    # The agent has dropped the older half of those that are expected there.
    for letter in [*letters, *reversed(letters)]:
        files = (types.CommandFile(path, letter * 900_000, 0o644, reused=True),)
        assert (
            await box.exec("head", "-c1", path, setup=types.CommandSetup(files))
        ).stdout == letter
    assert len(box.client.kept._known) == 16


async def test_the_path_of_the_command_selects_the_program(box: Box) -> None:
    await box.sh("mkdir bin && printf '#!/bin/sh\\necho mine\\n' > bin/tool && chmod +x bin/tool")
    run = await box.exec("tool", env={"PATH": f"{box.workdir}/bin:/usr/bin:/bin"})
    assert run.stdout == b"mine\n"
    assert (await box.exec("bin/tool")).stdout == b"mine\n"


async def test_bytes_that_are_not_utf8_pass_unchanged(box: Box) -> None:
    odd = b"\xff\xfex".decode("utf-8", "surrogateescape")
    assert (await box.exec("printf", "%s", odd)).stdout == b"\xff\xfex"


@pytest.mark.parametrize("size", [0, 1, MOST_ALONG, MOST_ALONG + 1, 1 << 20])
async def test_a_whole_stdin_is_delivered_completely_then_closed(box: Box, size: int) -> None:
    data = (bytes(range(1, 251)) * (size // 250 + 1))[:size]
    assert (await box.exec("cat", stdin=types.WholeInput(data))).stdout == data


async def test_a_short_stdin_travels_with_its_command(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    send, sent = AgentClient.post, list[int]()

    def post(self: AgentClient, frame: bytes, stream: int) -> None:
        sent.append(stream)
        send(self, frame, stream)

    monkeypatch.setattr(AgentClient, "post", post)
    monkeypatch.delattr(AgentClient, "send_data")
    assert (await box.exec("cat", stdin=types.WholeInput(b"short"))).stdout == b"short"
    assert len(sent) == 1


async def test_an_error_of_the_stdin_iterator_is_raised_and_kills_the_command(box: Box) -> None:
    async def broken() -> AsyncIterator[types.StdinItem]:
        yield b"x"
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await box.sh("sleep 1000", stdin=broken())
    assert await box.processes() == []


async def test_a_background_child_on_a_terminal_does_not_delay_the_result(box: Box) -> None:
    with anyio.fail_after(60):
        run = await box.sh("trap '' HUP; sleep 1000 & echo done", pty=types.PtySize())
    assert run.stdout == b"done\r\n"


@pytest.mark.parametrize(
    ("script", "options", "status", "ending"),
    [
        ("kill -TERM $$", {}, 143, types.Ending.SIGNAL),
        ("kill -ABRT $$", {}, 134, types.Ending.SIGNAL),
        ("kill -HUP $$", {"pty": types.PtySize()}, 129, types.Ending.SIGNAL),
        ("kill -KILL $$", {}, 137, None),  # the kernel's, for want of memory, looks the same
    ],
)
async def test_a_command_that_a_signal_ended_says_so(
    box: Box, script: str, options: dict[str, Any], status: int, ending: types.Ending | None
) -> None:
    exit = (await box.sh(script, **options)).exit
    assert (exit.status, exit.ending) == (status, ending)


async def test_usage_includes_reaped_children_and_excludes_the_agents_memory(box: Box) -> None:
    burn = "python3 -c 'import time\nwhile time.process_time() < 0.3: pass'"
    used = (await box.sh(f"{burn}; true")).exit.usage.processor_seconds
    assert used is not None
    assert 0.3 <= used < 3
    # Linux counts for a program the memory that it was started from.
    assert (await box.exec("true")).exit.usage.peak_memory_bytes is None


async def refused(box: Box, *argv: str, **options: object) -> tuple[int | None, str]:
    run = Run()
    with pytest.raises(CommandStartError) as raised:
        await box.exec(*argv, run=run, **options)
    assert (run.stdout, run.stderr, raised.value.retryable) == (b"", b"", False)
    assert "\n" not in str(raised.value)
    return raised.value.errno, str(raised.value)


@pytest.mark.parametrize("name", PROGRAMS["refused"])
async def test_a_command_that_cannot_start_says_why(box: Box, name: str) -> None:
    files = "echo hello > text; printf '#!/no/such/interpreter\\n' > script; chmod +x text script"
    await box.sh(files)
    row = PROGRAMS["refused"][name]
    argv = [each.replace("LONG", "x" * (row.get("mib", 0) << 20)) for each in row["argv"]]
    found, message = await refused(box, *argv, **row.get("options", {}))
    assert found == getattr(errno, row["errno"])
    assert row.get("says", "") in message
    assert (await box.exec("true")).status == 0


async def test_a_cwd_that_the_user_may_not_enter_is_named(user_box: Box) -> None:
    folder = f"{user_box.inner.backend.folder}/root-only"
    await user_box.exec("mkdir", "-m", "700", folder, user="root")
    assert (await refused(user_box, "true", cwd=folder))[0] == errno.EACCES


async def test_a_start_that_fails_on_a_terminal_leaves_nothing(box: Box) -> None:
    folder = f"/proc/{box.agent_pid()}/fd"
    before = len(os.listdir(folder))
    for _ in range(20):
        await refused(box, "/etc/passwd", pty=types.PtySize())
        await refused(box, "true", cwd="/no/such/folder")
    await until(lambda: len(os.listdir(folder)) <= before + 2)  # some are closed after the answer


async def test_a_user_that_does_not_exist_is_the_callers_mistake(box: Box) -> None:
    for user, words in (("nosuchuser", 'no user "nosuchuser"'), ("12345:nosuchgroup", "no group")):
        with pytest.raises(ConfigurationError, match=words):
            await box.exec("true", user=user)


async def test_a_sandbox_that_cannot_start_says_why(provider: NamespaceProvider) -> None:
    reasons: dict[str, dict[str, object]] = {
        "main command was not started: .*no program": {"command": ("no-such-program",)},
        "main command was not started: .*permission": {"command": ("/etc/passwd",)},
        "nosuchuser": {"user": "nosuchuser"},
    }
    for words, fields in reasons.items():
        with pytest.raises(SandboxStartError, match=words):
            await made(provider, **fields)


@pytest.mark.parametrize(
    "start",
    ["{} &", "nohup {} &", "setsid {} &", "{} & disown", "({} &)", "{} 2>&1 | cat &", "exec {} &"],
)
async def test_a_program_left_in_the_background_may_go_on_printing(box: Box, start: str) -> None:
    ran = await box.exec("bash", "-c", start.format(f"bash -c '{PRINTS}'"))
    assert ran.exit.status == 0
    assert (await box.sh(f"touch go; {WAITS.format('done')}; cat done")).stdout == b"all\n"


async def test_more_than_a_pipe_holds_is_dropped_and_does_not_block(box: Box) -> None:
    flood = "head -c 10000000 /dev/zero; echo all >all; mv all flooded"
    assert (await box.sh(f"({flood}) &")).exit.status == 0
    assert (await box.sh(f"{WAITS.format('flooded')}; cat flooded")).stdout == b"all\n"


async def test_the_agent_closes_a_stream_when_its_last_writer_ends(box: Box) -> None:
    count = "ls /proc/1/fd | wc -l"
    before = int((await box.sh(count)).stdout)
    for _ in range(20):
        await box.sh("sleep 0.2 &")
    await box.sh(f"until test $({count}) -le {before}; do sleep 0.01; done")
