"""What is typed at a terminal's prompt to make of it one program's stdin and stdout.

A terminal on a WebSocket is the one channel of Daytona that carries bytes both ways as they come.
Its shell is an interactive login shell: the profiles of the image may print, set the terminal and
PATH, define aliases and start another shell. So the line is short, since a terminal that is not raw
cuts what is longer than 4095 bytes, it uses what no profile changes, and it may be typed twice:
what comes before `begin` is skipped. A shell to which nobody speaks any more ends by itself.
"""

import shlex

__all__ = ["begin", "enter", "entered", "trailer"]

_ENTER = (
    " unset HISTFILE; \\exec /bin/sh -c 'case $PATH in */usr/bin*) ;; *)"
    " PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin; export PATH;; esac;"
    ' stty raw -echo min 0 time 255; printf "\\036%s%s:%s\\036" {first} {second} $?;'
    " while read -r line; do case $line in *{first}{second}) break;; esac; done;"
    ' read -r size; eval "$(dd bs=1 count=$size 2>/dev/null)"\'\n'
)
# In braces, so that nothing runs of a script that came in part. What it says last is lost when the
# shell ends at once, so that waits a little.
_BEGIN = """{{
stty min 1 time 0
unset HOME
eval "HOME=~$(id -un 2>/dev/null)"
case $HOME in /*) ;; *) HOME=/ ;; esac
export HOME
exec 3>&1
said=$({{ {program}; }} 2>&1 >&3 3>&- | tail -c 2000)
printf '\\036%s:%s\\036%s' {mark} "$said" {mark}
exec sleep 5
}}
"""


def enter(mark: str) -> bytes:
    """The line to type, which no echo of itself answers."""
    half = len(mark) // 2
    return _ENTER.format(first=mark[:half], second=mark[half:]).encode()


def entered(mark: str) -> bytes:
    """What `enter` begins its answer with; the status of `stty` and another \\036 follow."""
    return b"\x1e" + mark.encode() + b":"


def begin(argv: tuple[str, ...], mark: str, end: str) -> bytes:
    """What to send then: from here on all is the program's own, both ways, up to `trailer(end)`."""
    script = _BEGIN.format(program=shlex.join(argv), mark=end).encode()
    return b"\n%s\n%d\n%s" % (mark.encode(), len(script), script)


def trailer(end: str) -> tuple[bytes, bytes]:
    """What is around the end of its stderr, when it has ended."""
    return b"\x1e" + end.encode() + b":", b"\x1e" + end.encode()
