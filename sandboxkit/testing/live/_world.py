"""Checks of a command's environment: user, folder, variables, terminal, files, network."""

import os
import tempfile
from pathlib import Path

from sandboxkit import FileType, PtySize, SandboxFileNotFoundError
from sandboxkit.testing.live._subject import (
    COMMAND_SECONDS,
    Check,
    DifferentError,
    LiveSubject,
    UncheckableError,
    bounded,
    expect,
)

_UNAVAILABLE = 77
_PLACES = ("1.1.1.1:443", "8.8.8.8:53", "169.254.169.254:80")
_INTERNET = set(_PLACES[:2])
_NAME = "example.com"

_WHERE_LEAKED = """\
printf %s "$SECRET_PATTERN" |
    grep -l -F -f - /proc/1/environ /proc/[0-9]*/cmdline 2> /dev/null
:
"""
_PYTHON = """\
import socket, sys
for place in sys.argv[2:]:
    host, port = place.split(':')
    try:
        socket.create_connection((host, int(port)), 5).close()
        print(place)
    except OSError:
        pass
try:
    socket.getaddrinfo(sys.argv[1], 80)
    print(sys.argv[1])
except OSError:
    pass
"""
_CONNECT = f"""\
if command -v python3 > /dev/null; then exec timeout 45 python3 -c "$PROBE" "$@"; fi
command -v bash > /dev/null || exit {_UNAVAILABLE}
getent hosts "$1" > /dev/null 2>&1 && echo "$1"
shift
for place; do
    timeout 5 bash -c "exec 3<> /dev/tcp/${{place%:*}}/${{place#*:}}" 2> /dev/null && echo "$place"
done
:
"""
_SIZES = f"""\
command -v stty > /dev/null || exit {_UNAVAILABLE}
stty size; read x; stty size; read y; echo "read $y"
"""


def _user(subject: LiveSubject) -> str:
    uid, name = subject.output_of("id -u; id -un 2> /dev/null || echo '?'").split()
    asked = subject.sandbox.spec.user
    expect(asked in (None, uid, name), f"uid {uid} ({name}) instead of {asked}")
    bounded(subject.sandbox.write_file(f"{subject.workdir}/ours", b"1"))
    expect(
        subject.run('[ -O ours ] && [ -w ours ] && (umask 077; echo "$1" > theirs)', "2").returncode
        == 0,
        f"uid {uid} does not own the file that write_file() wrote",
    )
    theirs = bounded(subject.sandbox.read_file(f"{subject.workdir}/theirs"))
    expect(theirs == b"2\n", f"read_file() saw {theirs!r} of a private file")
    return f"uid {uid} ({name}), for files too"


def _workdir(subject: LiveSubject) -> str:
    pwd = subject.output_of("pwd && touch written-here")
    expect(pwd == subject.workdir, f"commands start in {pwd}")
    elsewhere = bounded(subject.sandbox.exec(["pwd"], cwd="/tmp", timeout=COMMAND_SECONDS))
    expect(elsewhere.stdout == "/tmp\n", f"cwd='/tmp' gave {elsewhere.stdout!r}")
    return f"{pwd}, and /tmp with cwd"


def _variables(subject: LiveSubject) -> str:
    result = subject.run(
        'printf "%s|%s|%s" "$LIVE_VARIABLE" "$LIVE_SECRET" "$ONE"', env={"ONE": "a 'b' $c"}
    )
    wanted = f"{subject.variable}|{subject.secret}|a 'b' $c"
    expect(result.stdout == wanted, "a command does not see the variables it was given")
    info = bounded(subject.sandbox.status())
    expect(subject.secret not in repr(info), "the secret is in the sandbox's description")
    leaked = subject.run(_WHERE_LEAKED, env={"SECRET_PATTERN": subject.secret}).stdout.split()
    expect(not leaked, f"the secret is in {', '.join(leaked)}")
    return "seen by commands; in no listing, no argument, not in process 1's environment"


def _terminal(subject: LiveSubject) -> str:
    process = subject.sandbox.exec(
        ["sh", "-c", _SIZES], pty=PtySize(33, 101), timeout=COMMAND_SECONDS
    )
    text = ""
    for piece in process.stdout:  # ends with the command, at its timeout at the latest
        text += piece
        if "33 101" in text:
            bounded(process.stdin.resize(PtySize(44, 90)))
            bounded(process.stdin.write("\ntyped\n"))
            break
    result = bounded(process)
    if result.returncode == _UNAVAILABLE:
        raise UncheckableError("the image has no stty")
    expect("44 90" in result.stdout and "read typed" in result.stdout, repr(result.stdout))
    return "33 x 101, resized to 44 x 90; a line typed and read"


def _files(subject: LiveSubject) -> str:
    sandbox, folder = subject.sandbox, f"{subject.workdir}/live-files"
    data = bytes(range(256)) + os.urandom((1 << 20) - 256)
    bounded(sandbox.write_file(f"{folder}/deep/data", data, mode=0o640))
    expect(bounded(sandbox.read_file(f"{folder}/deep/data")) == data, "a file came back changed")
    info = bounded(sandbox.stat(f"{folder}/deep/data"))
    expect(
        (info.type, info.size, info.mode) == (FileType.FILE, len(data), 0o640),
        f"stat() says {info}",
    )
    try:
        bounded(sandbox.read_file(f"{folder}/none"))
        raise DifferentError("a missing file was read")
    except SandboxFileNotFoundError:
        pass
    with tempfile.TemporaryDirectory() as temporary:
        here = Path(temporary)
        (here / "up").mkdir()
        (here / "up" / "run").write_text("#!/bin/sh\nwc -c < live-files/up/data\n")
        (here / "up" / "run").chmod(0o755)
        (here / "up" / "data").write_bytes(data)
        bounded(sandbox.upload(here / "up", f"{folder}/up"))
        counted = subject.output_of("live-files/up/run")
        expect(counted == str(len(data)), f"an uploaded program counted {counted} bytes")
        bounded(sandbox.download(f"{folder}/up", here / "down"))
        same = (here / "down" / "data").read_bytes() == data
        expect(same and os.access(here / "down" / "run", os.X_OK), "a download differs")
    bounded(sandbox.remove(folder, recursive=True))
    return "1 MiB written, read, uploaded, downloaded, exact; modes kept"


def _network(subject: LiveSubject) -> str:
    asked = subject.sandbox.spec.network
    result = subject.run(_CONNECT, _NAME, *_PLACES, env={"PROBE": _PYTHON})
    if result.returncode == _UNAVAILABLE:
        raise UncheckableError("the image has neither python3 nor bash to try it with")
    expect(result.returncode == 0, f"the probe exited with {result.returncode}: {result.stderr}")
    reached = result.stdout.split()
    seen = f"network={asked!r}: reached {', '.join(reached) or 'nothing'}"
    holds = not reached if asked == "none" else bool(_INTERNET.intersection(reached))
    expect(holds, seen)
    return seen


CHECKS = (
    Check("user", "the requested user, the same for commands and files", _user),
    Check("workdir", "commands start there, or in their cwd", _workdir),
    Check("variables", "env and secrets reach commands; a secret is shown nowhere", _variables),
    Check("terminal", "its size, and its new size", _terminal),
    Check("files", "up and down, exact, with modes", _files),
    Check("network", "as asked", _network),
)
