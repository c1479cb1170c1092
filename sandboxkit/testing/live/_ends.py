"""Checks of timeouts, kills, cancellation, silence, and a second client."""

import contextlib
from concurrent.futures import CancelledError

from sandboxkit import CommandTimeoutError, Ending, Process
from sandboxkit.testing.live._subject import (
    COMMAND_SECONDS,
    Check,
    DifferentError,
    LiveSubject,
    bounded,
    expect,
    wait_until,
)

_TIMEOUT = 3.0
_DEAD_SECONDS = 30.0

_TREE = """\
beat() { while :; do echo >> "$1"; sleep 0.2; done; }
beat "$1.child" &
(beat "$1.orphan" &)
last=orphan
if command -v setsid > /dev/null; then
    setsid sh -c 'while :; do echo >> "$1"; sleep 0.2; done' sh "$1.session" > /dev/null 2>&1 &
    last=session
fi
until [ -s "$1.child" ] && [ -s "$1.orphan" ] && [ -s "$1.$last" ]; do sleep 0.1; done
echo began
while :; do sleep 1; done
"""
"""Starts a child, an orphan and a process in a new session; prints "began" once all have written."""
_BEATS = 'a=$(cat "$1".* | wc -c); sleep 1; b=$(cat "$1".* | wc -c); echo $((a)) $((b))'


def _timeout(subject: LiveSubject) -> str:
    file = "beat-timeout"
    seconds = _timed_out(subject, file, _TIMEOUT)
    if seconds is None:
        file = "beat-timeout-again"
        seconds = _timed_out(subject, file, 5 * _TIMEOUT)
    if seconds is None:
        raise DifferentError("the error lacks the output so far")
    expect(_is_dead(subject, file), "processes that it had started ran on")
    return f"CommandTimeoutError after {seconds:.1f} s, its tree dead"


def _timed_out(subject: LiveSubject, file: str, timeout: float) -> float | None:
    """Return after how many seconds the command timed out; None if it timed out before it began."""
    try:
        result = bounded(subject.start(_TREE, file, timeout=timeout))
    except CommandTimeoutError as error:
        return error.result.duration if error.result.stdout == "began\n" else None
    raise DifferentError(f"it ended with status {result.returncode}")


def _kill(subject: LiveSubject) -> str:
    neighbour = subject.start("read line; echo $line", stdin=True)
    killed = _begun(subject, "beat-kill")
    killed.kill()
    result = bounded(killed)
    expect(
        (result.returncode, result.ending) == (137, Ending.KILLED),
        f"kill() came as status {result.returncode}, {result.ending}",
    )
    expect(_is_dead(subject, "beat-kill"), "processes that it had started ran on")
    cancelled = _begun(subject, "beat-cancel")
    cancelled.cancel()
    with contextlib.suppress(CancelledError):
        bounded(cancelled)
        raise DifferentError("it ran to its end anyway")
    seconds = wait_until(lambda: _is_dead(subject, "beat-cancel"), _DEAD_SECONDS)
    bounded(neighbour.stdin.write("spared\n"))
    output = bounded(neighbour).stdout
    expect(output == "spared\n", f"a neighbour printed {output!r}")
    return f"both trees dead, cancelled within {seconds:.1f} s, a neighbour spared"


def _silence(subject: LiveSubject) -> str:
    seconds = subject.silence
    script = 'echo before; sleep "$1"; echo after; exit 7'
    result = subject.run(script, f"{seconds:g}", timeout=seconds + COMMAND_SECONDS)
    expect(
        (result.returncode, result.stdout) == (7, "before\nafter\n"),
        f"status {result.returncode}, {result.stdout!r}",
    )
    expect(result.duration >= seconds - 1, f"it took {result.duration:.1f} s")
    return f"its output and status after {seconds:g} s in which nothing was sent"


def _second_client(subject: LiveSubject) -> str:
    first = subject.start("echo mine > mine; read line; echo $line", stdin=True)
    wait_until(lambda: subject.run("test -s mine").returncode == 0, COMMAND_SECONDS)
    assert subject.sandbox.id is not None
    with subject.again() as session:
        same = bounded(session.from_id(subject.sandbox.id))
        result = bounded(same.exec(["cat", "mine"], timeout=COMMAND_SECONDS))
        expect(result.stdout == "mine\n", f"it saw {result.stdout!r}, {result.stderr!r}")
    bounded(first.stdin.write("lives\n"))
    output = bounded(first).stdout
    expect(output == "lives\n", f"the first client's command printed {output!r}")
    return "it ran a command and left; the first client's command continued"


def _begun(subject: LiveSubject, file: str) -> Process:
    process = subject.start(_TREE, file)
    for text in process.stdout:
        if "began" in text:
            return process
    bounded(process)  # raises what ended it
    raise DifferentError("it ended")


def _is_dead(subject: LiveSubject, file: str) -> bool:
    before, after = map(int, subject.output_of(_BEATS, file).split())
    expect(before > 0, "its children never ran")
    return before == after


CHECKS = (
    Check("timeout", "CommandTimeoutError, the whole tree dead", _timeout),
    Check("kill and cancel", "the whole tree dead, and nothing else", _kill),
    Check("silence", "a command that is silent for long is unharmed", _silence),
    Check("second client", "reaches the same sandbox by its id, beside the first", _second_client),
)
