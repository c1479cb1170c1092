"""The encoding of EXEC, which starts a command, a job of the interpreter, or a series of runs.

Files that an agent keeps are named by their numbers.
"""

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field

from sandboxkit.providers._agent import frames
from sandboxkit.types import Command, CommandSeries, CommandSetup, PtySize, ResourceName, WholeInput

_MOST = 16


@dataclass(slots=True)
class KeptContent:
    """A content that the agent keeps under a number once it is `there`."""

    number: int
    there: bool = False


@dataclass(slots=True)
class KeptContents:
    """The newest 16 contents that were sent over one connection to be kept."""

    _known: dict[bytes, KeptContent] = field(default_factory=dict)
    _last: int = 0

    def of(self, command: Command) -> dict[bytes, KeptContent]:
        """Return the contents of a command's files that are, or will be, kept.

        There are none for a command whose input can be read only once: it could not be sent again in case
        the agent has forgotten a content.
        """
        found: dict[bytes, KeptContent] = {}
        if command.setup is not None and isinstance(command.stdin, WholeInput | None):
            for file in command.setup.files:
                if file.reused and file.content and file.mode is not None:
                    found[file.content] = self._add(file.content)
        return found

    def _add(self, content: bytes) -> KeptContent:
        if content not in self._known:
            self._last += 1
            self._known[content] = KeptContent(self._last)
            if len(self._known) > _MOST:
                del self._known[next(iter(self._known))]
        return self._known[content]


_FLAG_STDIN, _FLAG_PTY, _FLAG_PYTHON, _FLAG_SETUP, _FLAG_SERIES = 1, 2, 4, 8, 16
_KEEP_CONTENT = 1 << 16
_KEEP_MODE = 0xFFFFFFFF
_RLIMITS: dict[ResourceName, int] = {"cpu": 0, "fsize": 1, "stack": 3, "core": 4}
"""Linux's numbers of the resources."""
_NO_LIMIT = 0xFFFFFFFFFFFFFFFF
_RLIMIT = struct.Struct(">BQQ")


def exec_payload(
    command: Command,
    code: str | None = None,
    kept: Mapping[bytes, KeptContent] | None = None,
    series: CommandSeries | None = None,
) -> bytes:
    """Return the payload of the EXEC that starts a command, with `code` a job of the interpreter, or with
    `series` a series of runs.

    `kept` are the contents of the command's files that the agent keeps.
    """
    pty = command.pty or PtySize()
    flags = (_FLAG_STDIN if command.stdin is not None else 0) | (_FLAG_PTY if command.pty else 0)
    if code is not None:
        flags |= _FLAG_PYTHON
    if command.setup is not None:
        flags |= _FLAG_SETUP
    if series is not None:
        flags |= _FLAG_SERIES
    return b"".join(
        (
            frames.strings(command.argv),
            frames.strings(f"{name}={value}" for name, value in command.env.items()),
            frames.string(command.cwd or ""),
            frames.string(command.user or ""),
            struct.pack(">BHH", flags, pty.rows, pty.cols),
            b"" if code is None else frames.string(code),
            b"" if command.setup is None else _setup(command.setup, kept or {}),
            b"" if series is None else _series(series),
        )
    )


def _setup(setup: CommandSetup, kept: Mapping[bytes, KeptContent]) -> bytes:
    parts = [bytes([len(setup.rlimits)])]
    for name, values in setup.rlimits.items():
        soft, hard = (_NO_LIMIT if value is None else value for value in values)
        parts.append(_RLIMIT.pack(_RLIMITS[name], soft, hard))
    parts.append(len(setup.files).to_bytes(4, "big"))
    for file in setup.files:
        mode, content = _KEEP_MODE if file.mode is None else file.mode, file.content
        if file.reused and file.mode is not None and (known := kept.get(content)):
            mode |= _KEEP_CONTENT
            content = known.number.to_bytes(4, "big") + (b"" if known.there else content)
        parts += (frames.string(file.path), mode.to_bytes(4, "big"), frames.string(content))
    return b"".join(parts)


def _series(series: CommandSeries) -> bytes:
    each, total = (round(seconds * 1000) for seconds in (series.seconds, series.total_seconds))
    parts = [struct.pack(">4I", each, total, series.output_bytes, len(series.inputs))]
    for given in series.inputs:
        parts += (frames.strings(given.args), frames.string(given.stdin))
    return b"".join(parts)
