"""The str_replace_editor tool: view, edit and restore text files."""

import posixpath
from collections.abc import Callable
from typing import TypeVar

from sandboxkit import (
    CommandStartError,
    ConfigurationError,
    FileInfo,
    FileType,
    Operation,
    Sandbox,
    SandboxFileError,
    SandboxFileNotFoundError,
)
from sandboxkit.integrations._lines import lines_of
from sandboxkit.integrations._tools._clock import Clock
from sandboxkit.integrations._tools._result import ToolError

T = TypeVar("T")
_MAX_BYTES = 2 * 1024 * 1024
_MAX_UNDO = 20
_MAX_ENTRIES = 500
_MAX_FOLDERS = 50
_CONTEXT = 4


class Editor:
    """Edits the files of one sandbox. Changes can be undone per file, newest first.

    The methods return the text for the model. They raise ToolError for the model's mistakes and for
    a call that takes longer than `timeout` seconds. Infrastructure errors are raised unchanged.
    """

    def __init__(
        self, sandbox: Sandbox, *, timeout: float = 60.0, clock: Clock | None = None
    ) -> None:
        self._sandbox = sandbox
        self._timeout = timeout
        self._clock = clock or Clock()
        self._before: dict[str, list[bytes | None]] = {}

    async def view(self, path: str, view_range: list[int] | None = None) -> str:
        """Show a file with line numbers, or the folder's entries two levels deep."""
        info = await self._stat(path)
        if info is None:
            raise ToolError(f"{path} does not exist")
        if info.type is FileType.DIRECTORY:
            if view_range is not None:
                raise ToolError(f"{path} is a folder: view_range is for files")
            return await self._folder(path)
        lines = lines_of(await self._text(path)) or [""]
        first, last = _range(view_range, len(lines))
        return f"{path}, lines {first} to {last} of {len(lines)}:\n" + _numbered(lines, first, last)

    async def create(self, path: str, file_text: str) -> str:
        """Create a file or replace its contents."""
        info = await self._stat(path)
        if info is not None and info.type is FileType.DIRECTORY:
            raise ToolError(f"{path} is a folder")
        before = None if info is None else await self._bytes(path)
        await self._write(path, file_text, before)
        return f"{'created' if info is None else 'replaced'} {path}"

    async def str_replace(self, path: str, old_str: str, new_str: str = "") -> str:
        """Replace text that occurs exactly once."""
        text = await self._text(path)
        if not old_str:
            raise ToolError("old_str is empty; give the text to replace")
        found = text.count(old_str)
        if found == 0:
            raise ToolError(f"old_str does not occur in {path}; view the file and copy it exactly")
        if found > 1:
            places = ", ".join(map(str, _lines_of(text, old_str)))
            raise ToolError(
                f"old_str occurs {found} times in {path} (lines {places}); "
                "add lines around it until it is unique"
            )
        head = text.partition(old_str)[0]
        changed = text.replace(old_str, new_str)
        await self._write(path, changed, text.encode())
        return _excerpt(path, changed, head.count("\n"), new_str.count("\n") + 1)

    async def insert(self, path: str, insert_line: int, new_str: str) -> str:
        """Insert lines after line `insert_line`; 0 is the beginning of the file."""
        text = await self._text(path)
        lines = lines_of(text)
        if not 0 <= insert_line <= len(lines):
            raise ToolError(f"insert_line={insert_line} is not between 0 and {len(lines)}")
        if insert_line and not lines[insert_line - 1].endswith("\n"):
            lines[insert_line - 1] += "\n"
        added = new_str if new_str.endswith("\n") else new_str + "\n"
        changed = "".join([*lines[:insert_line], added, *lines[insert_line:]])
        await self._write(path, changed, text.encode())
        return _excerpt(path, changed, insert_line, added.count("\n"))

    async def undo_edit(self, path: str) -> str:
        """Undo the newest change that this editor made to the file."""
        key = posixpath.normpath(path)
        if not self._before.get(key):
            raise ToolError(f"there is no edit of {path} to undo")
        before = self._before[key][-1]
        if before is None:
            await self._call(lambda: self._sandbox.remove(path))
        else:
            await self._call(lambda: self._sandbox.write_file(path, before))
        self._before[key].pop()
        return f"removed {path}" if before is None else f"{path} is as it was before the last edit"

    async def _folder(self, path: str) -> str:
        entries, count, hidden, folders = [path], 1, 0, 0
        for info in await self._listed(path):
            if _hidden(info):
                hidden += 1
                continue
            entries.append(_entry(info))
            count += 1
            if info.type is FileType.DIRECTORY and folders < _MAX_FOLDERS:
                folders += 1
                inner = await self._listed(info.path)
                shown = [_entry(one) for one in inner if not _hidden(one)]
                count += len(shown)
                entries += shown[: max(_MAX_ENTRIES - len(entries), 0)]
        if count > _MAX_ENTRIES:
            entries = [*entries[:_MAX_ENTRIES], f"[... {count - _MAX_ENTRIES} more ...]"]
        return "\n".join([*entries, *([f"({hidden} hidden entries)"] if hidden else [])])

    async def _listed(self, path: str) -> list[FileInfo]:
        return await self._call(lambda: self._sandbox.list_dir(path))

    async def _stat(self, path: str) -> FileInfo | None:
        if not path.startswith("/"):
            raise ToolError(f"{path!r} is not an absolute path; did you mean /workspace/{path}?")
        try:
            return await self._call(lambda: self._sandbox.stat(path))
        except _Missing:
            return None

    async def _bytes(self, path: str) -> bytes:
        return await self._call(lambda: self._sandbox.read_file(path, max_bytes=_MAX_BYTES))

    async def _text(self, path: str) -> str:
        info = await self._stat(path)
        if info is None:
            raise ToolError(f"{path} does not exist")
        if info.type is FileType.DIRECTORY:
            raise ToolError(f"{path} is a folder")
        try:
            return (await self._bytes(path)).decode()
        except UnicodeDecodeError:
            raise ToolError(f"{path} is not a text file in UTF-8") from None

    async def _write(self, path: str, text: str, before: bytes | None) -> None:
        try:
            data = text.encode()
        except UnicodeEncodeError as error:
            raise ToolError(f"the text cannot be written as UTF-8: {error}") from None
        if len(data) > _MAX_BYTES:
            raise ToolError(f"{len(data)} bytes are too many; the limit is {_MAX_BYTES}")
        await self._call(lambda: self._sandbox.write_file(path, data))
        history = self._before.setdefault(posixpath.normpath(path), [])
        history.append(before)
        del history[:-_MAX_UNDO]

    async def _call(self, call: Callable[[], Operation[T]]) -> T:
        """Make one file call within the timeout; turn its file errors into ToolError."""
        await self._sandbox.start()  # outside the call's timeout
        try:
            operation = call()
        except ConfigurationError as error:
            raise ToolError(str(error)) from None
        try:
            return await self._clock.wait_for(operation, self._timeout)
        except SandboxFileNotFoundError as error:
            raise _Missing(str(error)) from None
        except SandboxFileError as error:
            raise ToolError(f"{error.path}: {error}") from None
        except CommandStartError as error:
            # Where files are read by commands: a path that no command line holds, or no process is left.
            raise ToolError(f"the call was not made: {error}") from None
        except TimeoutError:
            operation.cancel()
            raise ToolError(f"the call was cancelled after {self._timeout:g} s") from None


class _Missing(ToolError):
    """The path does not exist."""


def _hidden(info: FileInfo) -> bool:
    return posixpath.basename(info.path).startswith(".")


def _entry(info: FileInfo) -> str:
    return info.path + ("/" if info.type is FileType.DIRECTORY else "")


def _range(view_range: list[int] | None, count: int) -> tuple[int, int]:
    if view_range is None:
        return 1, count
    if len(view_range) != 2:
        raise ToolError("view_range is two line numbers: [first, last]; last may be -1")
    first, last = view_range
    if last == -1:
        last = count
    if not 1 <= first <= last:
        raise ToolError(f"view_range={view_range}: the lines of this file are 1 to {count}")
    if first > count:
        raise ToolError(f"view_range={view_range}: the file has {count} lines")
    return first, min(last, count)


def _numbered(lines: list[str], first: int, last: int) -> str:
    numbers = range(first, last + 1)
    return "\n".join(f"{n:6}\t{lines[n - 1].removesuffix(chr(10))}" for n in numbers)


def _lines_of(text: str, part: str) -> list[int]:
    places: list[int] = []
    start = 0
    while (start := text.find(part, start)) != -1 and len(places) < 10:
        places.append(text.count("\n", 0, start) + 1)
        start += len(part)
    return places


def _excerpt(path: str, text: str, line: int, count: int) -> str:
    lines = lines_of(text)
    first, last = max(1, line + 1 - _CONTEXT), min(len(lines), line + count + _CONTEXT)
    return f"edited {path}; it now reads:\n" + _numbered(lines, first, last)
