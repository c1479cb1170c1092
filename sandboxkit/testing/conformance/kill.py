"""Tests that killing a command kills its whole process tree, and nothing else."""

import time

from sandboxkit import CommandTimeoutError, Process, Sandbox
from sandboxkit.testing.conformance._base import DEADLINE, Conformance, token, until
from sandboxkit.testing.conformance._pytest import pytest

# $1 is the surviving process's script, $2 the token in its command line.
_TREES = {
    "child": 'sh -c "$1" "$2" & wait',
    "setsid": 'setsid sh -c "$1" "$2" & wait',
    "double_fork": '(setsid sh -c "$1" "$2" &); sleep 1000',
    "env_cleared": 'env -i PATH="$PATH" setsid sh -c "$1" "$2" & wait',
    "ignores_signals": 'trap \'\' TERM HUP INT; sh -c "$1" "$2" & while :; do wait; done',
}
_LEAF = "trap '' TERM HUP INT; echo ready; while :; do sleep 1; done"
trees = pytest.mark.parametrize("tree", _TREES.values(), ids=_TREES.keys())


def grow(sandbox: Sandbox, tree: str, timeout: float | None = None) -> tuple[Process, str]:
    """Start a process tree and wait until it is alive; return the command and the tree's token."""
    mark = token()
    process = sandbox.exec(["sh", "-c", tree, "sh", _LEAF, mark], timeout=timeout)
    assert next(iter(process.stdout.lines())) == "ready"
    assert alive(sandbox, mark), "the tree must be alive before it is killed"
    return process, mark


def alive(sandbox: Sandbox, mark: str) -> bool:
    """Return whether a process with the token in its command line is alive in the sandbox."""
    # Splitting the token and using a pipe keep it out of the search's own command lines.
    script = 'printf %s "$1$2" | grep -lasF -f - /proc/[0-9]*/cmdline'
    command = ["sh", "-c", script, "sh", mark[:16], mark[16:]]
    return sandbox.exec(command).result(DEADLINE).stdout != ""


class KillConformance(Conformance):
    """Process trees are killed by a timeout, by cancellation and by `kill()`."""

    def test_timeout_kills_the_whole_tree(self, shared: Sandbox) -> None:
        grown = {name: grow(shared, tree, timeout=4) for name, tree in _TREES.items()}
        for name, (process, mark) in grown.items():
            with pytest.raises(CommandTimeoutError):
                process.result(DEADLINE)
            assert not alive(shared, mark), name

    @trees
    def test_kill_kills_the_whole_tree(self, shared: Sandbox, tree: str) -> None:
        process, mark = grow(shared, tree)
        process.kill()
        assert process.result(DEADLINE).returncode == 137
        assert not alive(shared, mark)

    @trees
    def test_cancel_kills_the_whole_tree(self, shared: Sandbox, tree: str) -> None:
        process, mark = grow(shared, tree)
        assert process.cancel()
        until(lambda: not alive(shared, mark), "the cancelled command's tree is dead", 10)

    def test_a_kill_spares_the_neighbours(self, shared: Sandbox) -> None:
        neighbour = shared.exec(["cat"], stdin=True)
        neighbour.stdin.write(b"before ").result(DEADLINE)
        process, mark = grow(shared, _TREES["setsid"])
        process.kill()
        process.result(DEADLINE)
        assert not alive(shared, mark)
        neighbour.stdin.write(b"after").result(DEADLINE)
        neighbour.stdin.close()
        result = neighbour.result(DEADLINE)
        assert (result.returncode, result.stdout) == (0, "before after")

    def test_a_kill_spares_a_neighbours_background_child(self, shared: Sandbox) -> None:
        neighbour, spared = grow(shared, _TREES["child"])
        process, _ = grow(shared, _TREES["child"])
        process.kill()
        process.result(DEADLINE)
        assert alive(shared, spared)
        neighbour.kill()
        neighbour.result(DEADLINE)
        assert not alive(shared, spared)

    def test_a_normal_end_leaves_background_children(self, shared: Sandbox) -> None:
        mark = token()
        script = 'sh -c "$1" "$2" >/dev/null & echo started'
        shared.exec(["sh", "-c", script, "sh", "sleep 5; :", mark], check=True).result(DEADLINE)
        assert alive(shared, mark)

    def test_a_timeout_carries_the_output_so_far(self, shared: Sandbox) -> None:
        command = ["sh", "-c", "echo so far; echo here >&2; sleep 1000"]
        with pytest.raises(CommandTimeoutError) as caught:
            shared.exec(command, timeout=1).result(DEADLINE)
        assert isinstance(caught.value, TimeoutError)
        assert caught.value.result.stdout == "so far\n"
        assert caught.value.result.stderr == "here\n"

    def test_a_timeout_is_kept(self, shared: Sandbox) -> None:
        started = time.monotonic()
        with pytest.raises(CommandTimeoutError):
            shared.exec(["sleep", "1000"], timeout=0.5).result(DEADLINE)
        assert 0.5 <= time.monotonic() - started < 5

    def test_a_command_within_its_timeout_is_left_alone(self, shared: Sandbox) -> None:
        result = shared.exec(["echo", "quick"], timeout=20).result(DEADLINE)
        assert (result.returncode, result.stdout) == (0, "quick\n")

    def test_killing_a_command_that_writes_without_end(self, shared: Sandbox) -> None:
        process = shared.exec(["yes"], output_limit=1000)
        assert next(iter(process.stdout)).startswith("y\n")
        process.kill()
        assert process.result(DEADLINE).returncode == 137

    def test_killing_an_ended_command_succeeds(self, shared: Sandbox) -> None:
        process = shared.exec(["true"])
        process.result(DEADLINE)
        process.kill()
        assert process.returncode == 0

    def test_the_sandbox_is_usable_after_kills(self, shared: Sandbox) -> None:
        for _ in range(5):
            process = shared.exec(["sh", "-c", "echo ready; sleep 1000"])
            assert next(iter(process.stdout.lines())) == "ready"
            process.kill()
            assert process.result(DEADLINE).returncode == 137
        assert shared.exec(["echo", "fine"]).result(DEADLINE).stdout == "fine\n"


# Orphans that no parent, session or environment variable links to their command.
_HIDDEN = {
    "cleared": '(env -i PATH="$PATH" setsid sh -c "$1" "$2" &); sleep 1000',
    "forged": """
(env $(env | sed -n 's/^\\([A-Za-z_]*\\)=.*/\\1=0/p' | grep -v '^PATH=') SANDBOXKIT_EXEC_ID=0 \\
    setsid sh -c "$1" "$2" &)
sleep 1000
""",
    "twice_orphaned": """
(env -i PATH="$PATH" setsid sh -c '(setsid sh -c "$1" "$2" &)' sh "$1" "$2" &)
sleep 1000
""",
}
_FORKING = """
import os, signal, sys, time
beat = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # so that none of them stays as a zombie

def fork():
    while True:
        try:
            return os.fork()
        except BlockingIOError:  # at the limit of processes
            time.sleep(0.02)

for _ in range(100):
    if not fork():
        break
else:
    print("ready", flush=True)
    time.sleep(1000)
os.setsid()
end = time.monotonic() + 60  # where nothing else ends it
while time.monotonic() < end and os.path.exists(sys.argv[1]):
    os.write(beat, b".")
    time.sleep(0.02)
    if fork():
        os._exit(0)
"""


class StrongKillConformance(Conformance):
    """Process trees that hide every link to their command are killed too."""

    @pytest.mark.parametrize("tree", _HIDDEN.values(), ids=_HIDDEN.keys())
    def test_kill_finds_an_orphan_that_hides(self, shared: Sandbox, tree: str) -> None:
        process, mark = grow(shared, tree)
        process.kill()
        process.result(DEADLINE)
        assert not alive(shared, mark)

    def test_a_timeout_finds_an_orphan_that_hides(self, shared: Sandbox) -> None:
        process, mark = grow(shared, _HIDDEN["forged"], timeout=4)
        with pytest.raises(CommandTimeoutError):
            process.result(DEADLINE)
        assert not alive(shared, mark)

    def test_kill_finds_what_has_a_neighbours_environment(
        self, shared: Sandbox, folder: str
    ) -> None:
        script = "cat /proc/self/environ > $2/environ; echo ready; exec sleep 1000"
        neighbour = shared.exec(["sh", "-c", script, "sh", "", folder])
        assert next(iter(neighbour.stdout.lines())) == "ready"
        takes = """
import os, sys, time
env = open(sys.argv[1] + "/environ", "rb").read().split(b"\\0")
os.environb.clear()
os.environb.update(dict(pair.split(b"=", 1) for pair in env if b"=" in pair))
if os.fork():
    os.wait()
    os.execvp("sleep", ["sleep", "1000"])
parent = os.getpid()
if os.fork():
    os._exit(0)
while os.getppid() == parent:
    time.sleep(0.001)
os.setsid()
os.execvp("sh", ["sh", "-c", *sys.argv[2:]])
"""
        mark = token()
        process = shared.exec(["python3", "-c", takes, folder, _LEAF, mark])
        assert next(iter(process.stdout.lines())) == "ready"
        process.kill()
        process.result(DEADLINE)
        assert not alive(shared, mark)
        assert neighbour.poll() is None
        neighbour.kill()
        neighbour.result(DEADLINE)

    def test_kill_overtakes_a_hundred_that_fork(self, shared: Sandbox, folder: str) -> None:
        beat = f"{folder}/beat"
        process = shared.exec(["python3", "-c", _FORKING, beat])
        assert next(iter(process.stdout.lines())) == "ready"
        until(lambda: shared.stat(beat).result(DEADLINE).size > 500, "they keep forking")
        process.kill()
        assert process.result(DEADLINE).returncode == 137
        beats = shared.stat(beat).result(DEADLINE).size
        time.sleep(0.5)
        assert shared.stat(beat).result(DEADLINE).size == beats

    def test_kill_overtakes_a_tree_that_keeps_forking(self, shared: Sandbox, folder: str) -> None:
        # The process keeps forking away, so no search finds it; its writes show whether it is alive.
        code = """
import os, sys, time
beat = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
print("ready", flush=True)
end = time.monotonic() + 60  # where nothing else ends it
while time.monotonic() < end and os.path.exists(sys.argv[1]):
    os.write(beat, b".")
    if os.fork():
        os._exit(0)
    os.setsid()
"""
        beat = f"{folder}/beat"
        script = 'python3 -c "$1" "$2"; sleep 1000'
        process = shared.exec(["sh", "-c", script, "sh", code, beat])
        assert next(iter(process.stdout.lines())) == "ready"
        until(lambda: shared.stat(beat).result(DEADLINE).size > 20, "it keeps forking")
        process.kill()
        assert process.result(DEADLINE).returncode == 137
        beats = shared.stat(beat).result(DEADLINE).size
        time.sleep(0.5)
        assert shared.stat(beat).result(DEADLINE).size == beats
