"""The shell lines that turn a terminal into the stdin and stdout of one program.

A terminal over a WebSocket is Daytona's only channel that carries bytes both ways as they come.
Its shell is an interactive login shell: the profiles of the image may print, set the terminal and
PATH, define aliases and start another shell. The line therefore is short, since a terminal that is
not raw truncates lines at 4095 bytes, and it uses only what no profile changes. It may be typed
twice: input before that of `begin` is skipped. A shell that gets no input ends by itself.
"""

import shlex

_ENTER = (
    " unset HISTFILE; \\exec /bin/sh -c 'case $PATH in */usr/bin*) ;; *)"
    " PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin; export PATH;; esac;"
    ' stty raw -echo min 0 time 255; printf "\\036%s%s:%s\\036" {first} {second} $?;'
    " while read -r line; do case $line in *{first}{second}) break;; esac; done;"
    ' read -r size; eval "$(dd bs=1 count=$size 2>/dev/null)"\'\n'
)
# In braces, so that a script that arrived in part does not run. Output is lost if the shell ends right
# after it, so the shell sleeps at its end.
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
    """Return the line to type. The mark is split in it, so that its echo is no answer."""
    half = len(mark) // 2
    return _ENTER.format(first=mark[:half], second=mark[half:]).encode()


def entered(mark: str) -> bytes:
    """Return how the answer to `enter` begins; the status of `stty` and another \\036 follow."""
    return b"\x1e" + mark.encode() + b":"


def begin(argv: tuple[str, ...], mark: str, end: str) -> bytes:
    """Return the data that starts the program; its input follows, its output ends at `trailer(end)`."""
    script = _BEGIN.format(program=shlex.join(argv), mark=end).encode()
    return b"\n%s\n%d\n%s" % (mark.encode(), len(script), script)


def trailer(end: str) -> tuple[bytes, bytes]:
    """Return what precedes and follows the end of stderr, which is sent when the program has ended."""
    return b"\x1e" + end.encode() + b":", b"\x1e" + end.encode()
