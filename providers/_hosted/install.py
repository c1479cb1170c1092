"""How the agent gets into a sandbox: one shell command that finds it or takes it from its stdin."""

import hashlib
from functools import cache

import anyio
from anyio.abc import ByteStream

from sandboxkit.providers._agent import binary
from sandboxkit.providers._agent.link import BROKEN

__all__ = ["Found", "NoAgentError", "baked_name", "command", "lead"]

_MARK = b"\x1esandboxkit "
_END = b"\x1e"
_MAX_NOISE = 256 << 10
_PIECE = 1 << 20

# Its arguments: the socket, "start", "strict" or "find", name and size of the agent for each machine,
# a folder that is to be everybody's or "", flags.
# What it says comes between marks, after whatever the image says first.
_SCRIPT = r"""
say() { printf '\036sandboxkit %s\036' "$*"; }
socket=$1 verb=$2
case $(uname -m) in
  x86_64|amd64) arch=amd64 name=$3 size=$4 ;;
  aarch64|arm64) arch=arm64 name=$5 size=$6 ;;
  *) say "fails no agent for $(uname -m), only for x86_64 and aarch64"; exit 69 ;;
esac
common=$7
shift 7
if [ "$verb" = strict ]; then
  [ "$(id -u)" = 0 ] || { say "fails profile='strict' needs root: the vendor runs programs as user $(id -u)"; exit 69; }
  command -v find >/dev/null || { say "fails profile='strict' needs find in the image"; exit 69; }
  # The root's own file system; a folder with the sticky bit is meant for everybody.
  writable() { find / -xdev -perm -0002 \( -type f -o -type d ! -perm -1000 \) "$@" 2>/dev/null; }
  writable -exec chmod o-w {} + >/dev/null
  left=$(writable | head -n 1) # what went meanwhile is no failure
  [ -z "$left" ] || { say "fails profile='strict': everybody may write $left"; exit 69; }
  if [ -n "$common" ]; then
    mkdir -p "$common" && chmod 1777 "$common" || { say "fails $common cannot be made"; exit 69; }
  fi
  verb=start
fi
started=$(cat /proc/1/stat 2>/dev/null | sed 's/.*) //' | cut -d' ' -f20)
say "machine $(cat /proc/sys/kernel/random/boot_id 2>/dev/null)/$started"
for folder in /usr/local/bin "$HOME" /dev/shm; do
  agent=$folder/$name
  if [ -f "$agent" ] && [ -O "$agent" ] && [ -x "$agent" ]; then
    [ "$verb" = start ] && exec "$agent" link -start -socket="$socket" -- "$@"
    exec "$agent" link -socket="$socket"
  fi
done
[ "$verb" = start ] || { say none its program is not there any more; exit 69; }
command -v gzip >/dev/null || { say fails the sandbox has no gzip; exit 69; }
for folder in /usr/local/bin "$HOME" /dev/shm; do
  part=$folder/.$name.$$
  { printf '#!/bin/sh\nexit 0\n' >"$part" && chmod 755 "$part" && "$part"; } 2>/dev/null && {
    say wants $arch
    if head -c "$size" | gzip -dc >"$part" && mv "$part" "$folder/$name"; then
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
    """No agent answers in a sandbox that runs programs.

    `machine` tells a sandbox from the same one started again; None where nothing was said at all.
    """

    def __init__(self, message: str, machine: str | None = None) -> None:
        super().__init__(message)
        self.machine = machine


@cache
def _names() -> tuple[str, ...]:
    """Name and size of the compressed agent for each machine."""
    found: list[str] = []
    for arch in ("amd64", "arm64"):
        data = binary.packed(arch).read_bytes()
        found += [baked_name(arch), str(len(data))]
    return tuple(found)


@cache
def baked_name(arch: str | None = None) -> str:
    """The file name under which a template or an image may hold this version's agent.

    It lies in /usr/local/bin, and is the file at `binary.path(arch)`, uncompressed.
    """
    return f"sandboxkit-agent-{hashlib.sha256(binary.path(arch).read_bytes()).hexdigest()[:12]}"


def command(
    socket: str, flags: list[str] | None = None, *, strict: bool = False, common: str = ""
) -> tuple[str, ...]:
    """The command whose stdin and stdout `lead` takes to the agent; started with `flags`, if any.

    With `strict` it takes from everybody what they may write of the image, first, and makes a folder
    that is root's and everybody's.
    """
    verb = "find" if flags is None else "strict" if strict else "start"
    return ("sh", "-c", _SCRIPT, "sh", socket, verb, *_names(), common, *(flags or ()))


class Found(ByteStream):
    """The stream to an agent, from the first byte that is its own."""

    def __init__(self, stream: ByteStream) -> None:
        self.machine = ""
        self._stream, self._rest = stream, bytearray()

    async def word(self) -> tuple[str, str]:
        """The next thing that is said between marks, its first word apart."""
        while True:
            begin = self._rest.find(_MARK)
            end = self._rest.find(_END, begin + len(_MARK)) if begin >= 0 else -1
            if end >= 0:
                text = bytes(self._rest[begin + len(_MARK) : end]).decode(errors="replace")
                del self._rest[: end + len(_END)]
                verb, _, rest = text.partition(" ")
                return verb, rest
            if len(self._rest) > _MAX_NOISE:
                raise NoAgentError(f"{len(self._rest)} bytes came, and none of the agent's")
            self._rest += await self._stream.receive()

    @property
    def noise(self) -> str:
        """The end of what came before any mark, and of its stderr."""
        said: bytes = getattr(self._stream, "said", b"")
        return (bytes(self._rest[-500:]) + said[-500:]).decode(errors="replace").strip()

    async def receive(self, max_bytes: int = 65536) -> bytes:
        if self._rest:
            data = bytes(self._rest[:max_bytes])
            del self._rest[:max_bytes]
            return data
        return await self._stream.receive(max_bytes)

    async def send(self, item: bytes) -> None:
        await self._stream.send(item)

    async def send_eof(self) -> None:
        await self._stream.send_eof()

    async def aclose(self) -> None:
        await self._stream.aclose()


async def _give(stream: ByteStream, arch: str) -> None:
    data = await anyio.Path(binary.packed(arch)).read_bytes()
    try:
        for at in range(0, len(data), _PIECE):
            await stream.send(data[at : at + _PIECE])
    except BROKEN:
        pass  # why it takes no more is what it says next


async def lead(stream: ByteStream) -> Found:
    """Go as far as the agent's own first byte, and give it what it asks for on the way.

    The stream is closed when this fails. Raises NoAgentError.
    """
    found, machine = Found(stream), None
    try:
        while True:
            verb, rest = await found.word()
            if verb == "machine":
                found.machine = machine = rest
            elif verb == "wants":
                await _give(stream, rest)
            elif verb == "agent":
                return found
            else:
                raise NoAgentError(rest, machine)
    except BROKEN as error:
        with anyio.CancelScope(shield=True):
            await anyio.aclose_forcefully(stream)
        if machine is not None and isinstance(error, anyio.EndOfStream):
            raise NoAgentError(f"it ended: {found.noise}", machine) from error
        if isinstance(error, anyio.EndOfStream):
            raise NoAgentError(f"the program ended: {found.noise}") from error
        raise
    except BaseException:
        with anyio.CancelScope(shield=True):
            await anyio.aclose_forcefully(stream)
        raise
