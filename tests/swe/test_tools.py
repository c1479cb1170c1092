"""The tools that a model uses: what it sees, and what its mistakes come to."""

import asyncio
import time

import pytest

from sandboxkit import ConfigurationError, Sandbox, Session
from sandboxkit.integrations import _tools
from sandboxkit.integrations._tools import MARKER, Bash, Clock, Toolbox, _bash
from sandboxkit.terminal import Terminal
from sandboxkit.testing import FakeProvider
from tests.data_here import beside

CASES = beside(__file__)
pytestmark = pytest.mark.anyio


@pytest.fixture
def sandbox(session: Session) -> Sandbox:
    return session.sandbox()


@pytest.fixture
def tools(sandbox: Sandbox) -> Toolbox:
    return Toolbox(sandbox, timeout=20)


async def edit(tools: Toolbox, **arguments: object) -> str:
    return (await tools.call("str_replace_editor", arguments)).text


def test_output_over_the_limit_drops_its_middle() -> None:
    text = "".join(f"line {n}\n" for n in range(1000))
    cut = _tools.truncate_middle(text, 300)
    assert len(cut) <= 300
    assert cut.startswith("line 0\n")
    assert cut.endswith("line 999\n")
    left_out = int(cut.partition("[... ")[2].partition(" ")[0])
    kept = cut.replace(f"\n[... {left_out} characters left out ...]\n", "")
    assert left_out == len(text) - len(kept)
    assert _tools.truncate_middle("short", 5) == "short"
    with pytest.raises(ConfigurationError, match="limit=0"):
        _tools.truncate_middle("x", 0)


async def bash(tools: Toolbox, command: str, **arguments: object) -> str:
    return (await tools.call("bash", {"command": command, **arguments})).text


async def shown(tools: Toolbox, word: str, command: str, **arguments: object) -> str:
    """Run a script that goes on, and wait for the answer that has a word of its output."""
    text = await bash(tools, command, **arguments)
    while word not in text:
        assert "still running" in text
        text = await bash(tools, "")
    return text


@pytest.mark.parametrize("name", CASES["outputs"])
async def test_the_output_of_scripts_is_shown(tools: Toolbox, name: str) -> None:
    for script, text, error in CASES["outputs"][name]:
        result = await tools.call("bash", {"command": script})
        assert (result.text, result.error) == (text, error)


async def test_a_shell_that_ends_is_replaced_and_that_is_said(tools: Toolbox) -> None:
    ended = await tools.call("bash", {"command": "cd /tmp; echo bye; exit 3"})
    says = "exit status 3; the shell has ended: the next command starts a new one"
    assert ended.text == f"bye\nexit\n\n[{says}]"
    assert ended.error
    assert await bash(tools, "pwd; echo $$ > pid") == "/workspace\n"
    await tools.bash._sandbox.exec(["sh", "-c", "kill -9 $(cat /workspace/pid)"])
    again = await tools.call("bash", {"command": "echo here"})
    assert again.text == "here\n\n[the previous shell had ended: this command ran in a new one]"
    assert not again.error
    assert "status 137; the shell has ended" in await bash(tools, "kill -9 $$")


async def test_scripts_run_until_stopped(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_bash, "_INTERRUPT_SECONDS", 60.0)
    tools = Toolbox(sandbox, timeout=1)
    text = await shown(tools, "begun", "cd /tmp; echo begun; sleep 601; echo never")
    assert text.startswith("begun\n\n[still running; a call waits up to 1 s")
    assert (await tools.call("bash", {"command": ""})).error
    refused = await tools.call("bash", {"command": "pwd"})
    assert refused.error
    assert "not run: the previous script is still running" in refused.text
    assert "still running" in await bash(tools, "")
    assert "[exit status 130]" in await bash(tools, "C-c")
    tools.bash._timeout = 60.0
    count = "pwd; cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' ' | grep -c '[s]leep 601'"
    assert await bash(tools, count) == "/tmp\n0\n\n[exit status 1]"
    assert "no script is running" in await bash(tools, "C-c")
    assert "no script is running" in await bash(tools, "yes", as_input=True)


async def test_what_ignores_the_interrupt_is_killed_and_then_its_shell(sandbox: Sandbox) -> None:
    tools = Toolbox(sandbox, timeout=0.3)
    kill = Terminal.kill
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_bash, "_INTERRUPT_SECONDS", 0.5)
        await shown(tools, "ready", "x=5; (trap '' INT; echo ready; sleep 602)")
        with patch.context() as patient:
            patient.setattr(Terminal, "kill", lambda self, **_: kill(self, timeout=60))
            assert "Killed" in await bash(tools, "C-c")
        tools.bash._timeout = 60.0
        assert await bash(tools, "echo $x") == "5\n"
        tools.bash._timeout = 0.3
        await shown(tools, "ready", "trap '' INT; echo ready; while :; do :; done")
        assert "137; the shell has ended" in await bash(tools, "C-c")
    tools.bash._timeout = 60.0
    assert await bash(tools, "echo [$x]") == "[]\n"


async def test_a_program_can_be_answered(tools: Toolbox, sandbox: Sandbox) -> None:
    quick = Toolbox(sandbox, timeout=0.3)
    await shown(quick, "name? ", "read -p 'name? ' name; echo hello $name; cat; echo over")
    answered = await shown(quick, "hello", "ann", as_input=True)
    assert answered.startswith("hello ann\n\n[still running")
    assert (await shown(quick, "C-c", "C-c", as_input=True)).startswith("C-c\n")
    assert await shown(quick, "over", "C-d") == "over\n"


async def test_submit_and_the_marker_submit(tools: Toolbox) -> None:
    assert (await tools.call("submit", "{}")).submitted
    assert (await tools.call("bash", {"command": f"echo {MARKER}; echo my answer"})).submitted
    assert not (await tools.call("bash", {"command": f"echo {MARKER}; false"})).submitted
    assert not (await tools.call("bash", {"command": f"echo first; echo {MARKER}"})).submitted


async def test_the_editor_edits_and_undoes_step_by_step(tools: Toolbox) -> None:
    path = "/workspace/new/notes.txt"
    made = await edit(tools, command="create", path=path, file_text="a\nb\nc\n")
    assert made == f"created {path}"
    text = await edit(tools, command="str_replace", path=path, old_str="b", new_str="B")
    assert "     2\tB" in text
    await edit(tools, command="insert", path=path, insert_line=0, new_str="zero")
    seen = await edit(tools, command="view", path=path, view_range=[1, 2])
    assert seen.splitlines()[1:] == ["     1\tzero", "     2\ta"]
    await edit(tools, command="undo", path=path)
    await edit(tools, command="undo_edit", path=path)
    content = await edit(tools, command="view", path=path)
    assert content.splitlines()[1:] == ["     1\ta", "     2\tb", "     3\tc"]
    assert await edit(tools, command="undo_edit", path=path) == f"removed {path}"
    assert "no edit" in await edit(tools, command="undo_edit", path=path)
    assert "does not exist" in await edit(tools, command="view", path=path)
    # After a last line without a newline.
    await edit(tools, command="create", path="/workspace/f", file_text="a\nb")
    await edit(tools, command="insert", path="/workspace/f", insert_line=2, new_str="c")
    assert (await tools.call("bash", {"command": "cat f"})).text == "a\nb\nc\n"


async def test_a_folder_is_shown_two_levels_deep_without_what_is_hidden(tools: Toolbox) -> None:
    await tools.call("bash", {"command": "mkdir -p d/e/f .git && touch d/one d/e/two d/e/f/three"})
    lines = (await edit(tools, command="view", path="/workspace/d")).splitlines()
    shown = [line.removeprefix("/workspace/d") for line in lines]
    assert shown == ["", "/e/", "/e/f/", "/e/two", "/one"]
    assert "(1 hidden entries)" in await edit(tools, command="view", path="/workspace")


@pytest.mark.parametrize(("name", "arguments", "says"), CASES["mistakes"])
async def test_mistakes_get_a_remedy(tools: Toolbox, name: str, arguments: str, says: str) -> None:
    await tools.call("bash", {"command": r"printf 'same\nsame\n' > t; printf '\377' > bin"})
    result = await tools.call(name, arguments)
    assert result.error
    assert result.text.startswith("ERROR: ")
    assert says in result.text


async def test_a_path_that_no_command_line_holds_is_the_models_mistake() -> None:
    async with Session(FakeProvider()) as session:
        tools = Toolbox(session.sandbox())
        assert "was not made" in await edit(tools, command="view", path="/" + "x" * 300_000)


async def test_a_paused_clock_lets_no_deadline_pass(sandbox: Sandbox) -> None:
    clock = Clock()
    bash = Bash(sandbox, timeout=1, clock=clock)
    await sandbox.start()
    clock.pause()
    result = await bash.run("sleep 2; echo done")
    assert (result.output, result.returncode) == ("done\n", 0)
    clock.resume()
    begun = time.monotonic()
    assert (await bash.run("sleep 60")).running
    assert time.monotonic() - begun < 50


async def test_cancelling_a_call_kills_its_script(sandbox: Sandbox) -> None:
    bash = Bash(sandbox)
    running = asyncio.create_task(bash.run("touch begun; exec sleep 77"))
    while not await sandbox.list_dir("/workspace"):
        await asyncio.sleep(0.05)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    count = "ls /proc/[0-9]*/cmdline | xargs cat 2>/dev/null | tr '\\0' ' ' | grep -c 'sleep 7[7]'"
    while (await bash.run(count)).output.strip() != "0":
        await asyncio.sleep(0.05)
