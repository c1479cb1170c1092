"""Installs the agent in a sandbox: one shell command finds the binary, or reads it from stdin.

This saves round trips. The first data for the agent are an argument of the command if the image probably
has the agent, or if a concurrent upload brings the binary. Otherwise the binary and the first data are
sent right after the command, without waiting for output. If the assumption about the sandbox was wrong,
the command is run again.
"""

import base64
import hashlib
from collections.abc import Sequence
from functools import cache

import anyio
from anyio.abc import ByteStream

from sandboxkit.providers._agent import binary

PRESENT = ""
"""The assumption that the sandbox already has the agent."""
LIKELY = "amd64"
"""The default assumption: the sandbox has this architecture and lacks the agent."""

_MARK = b"\x1esandboxkit "
_END = b"\x1e"
_MAX_NOISE = 256 << 10
_PADDING = bytes(16 << 10)
"""Padding after the agent binary: the `head` of some images consumes more than it outputs."""

# Arguments: the socket; "start", "strict", "find" or "put"; the agent's name and size for each
# architecture; a folder to make world-writable, or ""; the architecture of the supplied agent, or ""; the
# file to which another request writes it, or "" if it is on stdin; the first data for the agent in base64,
# or "" if they are on stdin; the agent's flags. The data become a variable, which other processes cannot
# read, unlike a command line. The script's messages are between marks and may follow output of the image.
_SCRIPT = r"""
say() { printf '\036sandboxkit %s\036' "$*"; }
socket=$1 verb=$2
case $(uname -m) in
  x86_64|amd64) arch=amd64 name=$3 size=$4 ;;
  aarch64|arm64) arch=arm64 name=$5 size=$6 ;;
  *) say "fails no agent for $(uname -m), only for x86_64 and aarch64"; exit 69 ;;
esac
common=$7 given=$8 file=$9
case $given in amd64) comes=$4 ;; arm64) comes=$6 ;; *) comes=0 ;; esac
[ -z "${10}" ] || export SANDBOXKIT_FIRST="${10}"
shift 10
take() { # outputs the supplied agent, compressed; fails if its file does not arrive
  [ -n "$file" ] || { head -c "$comes"; return; }
  polls=0
  until [ -O "$file" ] && [ "$(wc -c <"$file")" -ge "$comes" ]; do
    polls=$((polls + 1))
    [ "$polls" -le 6000 ] || return 1
    sleep 0.01
  done
  cat "$file"; rm -f "$file"
}
if [ "$verb" = strict ]; then
  [ "$(id -u)" = 0 ] || {
    say "fails profile='strict' needs root: the vendor runs programs as user $(id -u)"; exit 69;
  }
  command -v find >/dev/null || { say "fails profile='strict' needs find in the image"; exit 69; }
  # The root's own file system; a folder with the sticky bit is meant for everybody.
  writable() { find / -xdev -perm -0002 \( -type f -o -type d ! -perm -1000 \) "$@" 2>/dev/null; }
  writable -exec chmod o-w {} + >/dev/null
  left=$(writable | head -n 1) # files that vanished meanwhile are no failure
  [ -z "$left" ] || { say "fails profile='strict': everybody may write $left"; exit 69; }
  if [ -n "$common" ]; then
    mkdir -p "$common" && chmod 1777 "$common" || { say "fails $common cannot be made"; exit 69; }
  fi
  verb=start
fi
{ read -r boot </proc/sys/kernel/random/boot_id; read -r stat </proc/1/stat; } 2>/dev/null
nth() { shift 19; printf %s "$1"; } # field 22, the start time: ${stat##*) } removed the first two
say "machine $boot/$(nth ${stat##*) })"
for folder in /usr/local/bin "$HOME" /dev/shm; do
  [ "$verb$folder" = put/dev/shm ] && continue # files in memory do not get into an image
  agent=$folder/$name
  if [ -f "$agent" ] && [ -O "$agent" ] && [ -x "$agent" ]; then
    [ "$verb" = find ] && exec "$agent" link -socket="$socket"
    [ -z "$given" ] || { take >/dev/null || exit 69; say had; }
    [ "$verb" = put ] && { say put "$folder"; exit; }
    exec "$agent" link -start -socket="$socket" -- "$@"
  fi
done
[ "$verb" = find ] && { say none its program is not there any more; exit 69; }
[ "$given" = "$arch" ] || { [ -z "$file" ] || take >/dev/null; say wants $arch; exit 69; }
command -v gzip >/dev/null || { say fails the sandbox has no gzip; exit 69; }
for folder in /usr/local/bin "$HOME" /dev/shm; do
  [ "$verb$folder" = put/dev/shm ] && continue
  part=$folder/.$name.$$
  { printf '#!/bin/sh\nexit 0\n' >"$part" && chmod 755 "$part" && "$part"; } 2>/dev/null && {
    if take | gzip -dc >"$part" && mv "$part" "$folder/$name"; then
      [ "$verb" = put ] && { sync; say put "$folder"; exit; }
      exec "$folder/$name" link -start -socket="$socket" -- "$@"
    fi
    rm -f "$part"
    say "fails it could not be written to $folder: is the disk full?"
    exit 69
  }
  rm -f "$part" 2>/dev/null
done
say "fails none of /usr/local/bin, $HOME and /dev/shm takes a program that can be run (noexec, or read-only)"
exit 69
"""


class NoAgentError(Exception):
    """A sandbox runs programs but has no usable agent.

    `machine` identifies this run of the sandbox; None if there was no output.
    """

    def __init__(self, message: str, machine: str | None = None) -> None:
        super().__init__(message)
        self.machine = machine


@cache
def _names() -> tuple[str, ...]:
    """Return name and compressed size of the agent for each architecture."""
    found: list[str] = []
    for arch in ("amd64", "arm64"):
        data = binary.packed(arch).read_bytes()
        found += [baked_name(arch), str(len(data))]
    return tuple(found)


@cache
def baked_name(arch: str | None = None) -> str:
    """Return the file name in /usr/local/bin under which an image may contain this version's agent.

    The content is that of `binary.path(arch)`, uncompressed.
    """
    return f"sandboxkit-agent-{hashlib.sha256(binary.path(arch).read_bytes()).hexdigest()[:12]}"


@cache
def version() -> str:
    """Return a string that identifies this sandboxkit version's agents."""
    return hashlib.sha256(" ".join(_names()).encode()).hexdigest()[:12]


@cache
def data_of(arch: str) -> bytes:
    """Return the data that the start command reads first: the agent for `arch`, or b"" for PRESENT."""
    return b"" if arch == PRESENT else packed(arch) + _PADDING


@cache
def packed(arch: str) -> bytes:
    """Return the compressed agent, which a concurrent upload may write to `upload_path(arch, ...)`."""
    return binary.packed(arch).read_bytes()


def upload_path(arch: str, sandbox_id: str) -> str:
    """Return the path of the file for which `command(upload=...)` waits; no image can contain it."""
    return f"/tmp/.{baked_name(arch)}-{sandbox_id}.gz"


def command(
    socket: str,
    verb: str,
    flags: Sequence[str] = (),
    *,
    assumed: str = PRESENT,
    common: str = "",
    upload: str = "",
    first: bytes = b"",
) -> tuple[str, ...]:
    """Return the shell command whose stdin and stdout become the agent's.

    The verb "start" starts an agent with `flags` unless one listens. "strict" first removes world write
    permission in the image and makes `common`, a root-owned folder with mode 1777. "put" stores the agent
    in the image and exits. These three read `data_of(assumed)` from stdin; with `upload` they wait instead
    for that file, which another request writes, and remove it. "find" connects to a running agent. A new
    agent receives `first` before the data on stdin; this needs `assumed` to be PRESENT, or an `upload`.
    """
    given = base64.b64encode(first).decode()
    words = (socket, verb, *_names(), common, assumed, upload, given, *flags)
    return ("sh", "-c", _SCRIPT, "sh", *words)


class WantsError(Exception):
    """The assumption was wrong: the sandbox lacks the agent, and its architecture is `arch`."""

    def __init__(self, arch: str) -> None:
        super().__init__(f"it has no agent for {arch}")
        self.arch = arch


class Found(ByteStream):
    """The stream to an agent, without the output that precedes the agent's own.

    `read_preamble`, or else the first `receive`, consumes that output. If it fails, `receive` raises
    BrokenResourceError and `failure` has the reason. `first` is sent before any other data.
    """

    def __init__(self, stream: ByteStream, first: bytes = b"") -> None:
        self.machine = ""
        self.had_agent = False
        """Whether the sandbox already had the agent."""
        self.failure: NoAgentError | WantsError | None = None
        self.is_over = False
        """Whether `failure` is final: no agent received any data, and none will."""
        self._stream, self._first, self._rest = stream, first, bytearray()
        self._at_agent = False

    async def read_preamble(self) -> None:
        """Read up to the agent's first byte. Raises NoAgentError, WantsError or one of BROKEN."""
        try:
            while not self._at_agent:
                verb, rest = await self.word()
                if verb == "machine":
                    self.machine = rest
                elif verb == "had":
                    self.had_agent = True
                elif verb in ("agent", "put"):
                    self._at_agent = True
                elif verb == "wants":
                    self.is_over = True
                    raise WantsError(rest)
                else:
                    self.is_over = True
                    raise NoAgentError(rest, self.machine or None)
        except anyio.EndOfStream as error:
            self.is_over = True
            self.failure = NoAgentError(
                f"{'it' if self.machine else 'the program'} ended: {self.noise}",
                self.machine or None,
            )
            raise self.failure from error
        except (NoAgentError, WantsError) as error:
            self.failure = error
            raise

    async def word(self) -> tuple[str, str]:
        """Return the next message between marks, as its first word and the rest."""
        while True:
            begin = self._rest.find(_MARK)
            end = self._rest.find(_END, begin + len(_MARK)) if begin >= 0 else -1
            if end >= 0:
                text = bytes(self._rest[begin + len(_MARK) : end]).decode(errors="replace")
                del self._rest[: end + len(_END)]
                verb, _, rest = text.partition(" ")
                return verb, rest
            if len(self._rest) > _MAX_NOISE:
                raise NoAgentError(f"received {len(self._rest)} bytes, none of them from the agent")
            self._rest += await self._stream.receive()

    @property
    def noise(self) -> str:
        """The end of the output outside of marks, and the end of stderr."""
        text: bytes = getattr(self._stream, "diagnostics", b"")
        return (bytes(self._rest[-500:]) + text[-500:]).decode(errors="replace").strip()

    async def receive(self, max_bytes: int = 65536) -> bytes:
        if not self._at_agent:
            try:
                await self.read_preamble()
            except (NoAgentError, WantsError) as error:
                raise anyio.BrokenResourceError from error
        if self._rest:
            data = bytes(self._rest[:max_bytes])
            del self._rest[:max_bytes]
            return data
        return await self._stream.receive(max_bytes)

    async def send(self, item: bytes) -> None:
        first, self._first = self._first, b""
        await self._stream.send(first + item if first else item)

    async def send_eof(self) -> None:
        await self._stream.send_eof()

    async def aclose(self) -> None:
        await self._stream.aclose()


async def after_preamble(stream: ByteStream) -> Found:
    """Read the output before the agent's first byte, and return the stream that begins with this byte.

    The stream is closed on failure. Raises what `Found.read_preamble` raises.
    """
    found = Found(stream)
    try:
        await found.read_preamble()
    except BaseException:
        with anyio.CancelScope(shield=True):
            await anyio.aclose_forcefully(stream)
        raise
    return found
