"""The MCP server's tools: exec, read_file, write_file and list_files, in one sandbox at a time."""

import posixpath
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Annotated, TypedDict, TypeVar

from mcp.server.mcpserver import Image, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import CallToolResult, TextContent, ToolAnnotations
from pydantic import Field

import sandboxkit
from sandboxkit import (
    CommandStartError,
    CommandTimeoutError,
    ConfigurationError,
    Ending,
    FileInfo,
    FileType,
    OutcomeUnknownError,
    ProcessResult,
    Sandbox,
    SandboxError,
    SandboxFileError,
    SandboxNotFoundError,
    SandboxTerminatedError,
    Session,
)
from sandboxkit.integrations._lines import lines_of
from sandboxkit.integrations._tools import killed_after, shell_argv, truncate_middle

T = TypeVar("T")

_EXEC = (
    "Run a shell command in the sandbox and return its output and exit status. Each command runs in "
    "a new shell: files and background processes are kept, the working directory and variables are "
    "not."
)
_TIMEOUT = 120.0
_KEPT = 1024 * 1024
"""Maximum bytes of a stream that are kept."""
_SHOWN = 30_000
"""Maximum characters of a stream or of a file in a result."""
_MAX_READ = 16 * 1024 * 1024
_MAX_IMAGE = 1024 * 1024
_MAX_ENTRIES = 1000
_NEW = (
    "[This is a new sandbox: the one before it has ended, and its files, processes and installed "
    "packages are gone.]\n"
)
_READ_ONLY = ToolAnnotations(read_only_hint=True)

Path = Annotated[str, Field(description="absolute, or relative to the working directory")]


class ServedSandbox:
    """One sandbox of a session, started by the first call and replaced by a new one after its end.

    The next result contains a note, so a sandbox is never replaced silently.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._sandbox = session.sandbox()
        self._replaced = False

    @property
    def sandbox(self) -> Sandbox:
        """The sandbox in which the next call runs."""
        return self._sandbox

    async def call(self, work: Callable[[Sandbox], Awaitable[T]]) -> T:
        """Run `work` in the sandbox. Raises errors of sandboxkit as ToolError, whose text the model sees."""
        sandbox = self._sandbox
        try:
            return await work(sandbox)
        except (SandboxTerminatedError, SandboxNotFoundError) as error:
            self._replace(sandbox)
            raise ToolError(
                f"the sandbox ended: {error}. Its files and processes are gone, including any results "
                "of this call. The next call gets a new, empty sandbox."
            ) from error
        except (CommandStartError, ConfigurationError, SandboxFileError) as error:
            raise ToolError(str(error)) from error
        except OutcomeUnknownError as error:
            raise ToolError(f"it is unknown whether the command ran: {error}") from error
        except SandboxError as error:
            again = " The same call may work later." if error.retryable else ""
            raise ToolError(f"the sandbox's backend failed: {error}.{again}") from error

    def news(self) -> str:
        """Return the prefix of the next result: a note after a replacement, once; otherwise ""."""
        replaced, self._replaced = self._replaced, False
        return _NEW if replaced else ""

    def _replace(self, ended: Sandbox) -> None:
        if self._sandbox is ended:  # otherwise another call has replaced it
            ended.stop()  # session.close() retries a failure, and reports it
            self._sandbox, self._replaced = self._session.sandbox(), True


class RunResultFields(TypedDict):
    """The structured result of `exec`, for programs; its text has the same content for a model."""

    returncode: int
    stdout: str
    stderr: str
    timed_out: bool
    truncated: bool


Lifespan = Callable[[MCPServer[None]], AbstractAsyncContextManager[None]]


def build(session: Session, *, lifespan: Lifespan | None = None) -> MCPServer[None]:
    """Make a server with the tools exec, read_file, write_file and list_files.

    The tools share one sandbox with the session's options. The first call starts it, and closing the
    session deletes it. If it ends, the next call gets a new sandbox, and its result begins with a note
    about that. `lifespan` is a context manager around the connection of a client.
    """
    place = ServedSandbox(session)
    server: MCPServer[None] = MCPServer(
        "sandboxkit",
        version=sandboxkit.__version__,
        instructions=_instructions(session.provider_name, place.sandbox),
        lifespan=lifespan,
        log_level="WARNING",
    )

    async def absolute(path: str) -> str:
        if not posixpath.isabs(path):
            path = posixpath.join(await place.call(lambda sandbox: sandbox.workdir()), path)
        return posixpath.normpath(path)

    @server.tool(description=_EXEC)
    async def exec(
        command: Annotated[str, Field(description="a script for bash, or for sh without bash")],
        timeout: Annotated[  # noqa: ASYNC109 - the parameter's name for clients
            float, Field(gt=0, description="seconds after which the command is killed")
        ] = _TIMEOUT,
        cwd: Annotated[str | None, Field(description="directory to run it in")] = None,
        stdin: Annotated[str | None, Field(description="standard input; empty by default")] = None,
    ) -> Annotated[CallToolResult, RunResultFields]:
        starts_in = None if cwd is None else await absolute(cwd)

        async def run(sandbox: Sandbox) -> tuple[ProcessResult, bool]:
            process = sandbox.exec(
                shell_argv(command),
                cwd=starts_in,
                timeout=timeout,
                stdin=stdin,
                output_limit=_KEPT,
            )
            try:
                return await process, False
            except CommandTimeoutError as error:
                return error.result, True

        result, timed_out = await place.call(run)
        ran: RunResultFields = {
            "returncode": result.returncode,
            "stdout": truncate_middle(result.stdout, _SHOWN),
            "stderr": truncate_middle(result.stderr, _SHOWN),
            "timed_out": timed_out,
            "truncated": result.truncated or max(map(len, (result.stdout, result.stderr))) > _SHOWN,
        }
        text = place.news() + _format_result(ran, result, timeout)
        return CallToolResult(
            content=[TextContent(type="text", text=text)], structured_content={**ran}
        )

    @server.tool(annotations=_READ_ONLY, structured_output=False)
    async def read_file(
        path: Path,
        first_line: Annotated[int, Field(ge=1, description="number of the first line, from 1")] = 1,
        lines: Annotated[int, Field(ge=1, description="maximum number of lines")] = 2000,
    ) -> list[str | Image]:
        """Read a text file in the sandbox, or view a PNG, JPEG, GIF or WebP image."""
        where = await absolute(path)
        data = await place.call(lambda sandbox: sandbox.read_file(where, max_bytes=_MAX_READ))
        if form := _image(data):
            if len(data) > _MAX_IMAGE:
                raise ToolError(
                    f"{where} is an image of {len(data)} bytes; the limit is {_MAX_IMAGE}"
                )
            return [*filter(None, [place.news()]), Image(data=data, format=form)]
        try:
            text = data.decode()
        except UnicodeDecodeError:
            raise ToolError(
                f"{where} is not UTF-8 text but {len(data)} bytes of binary data; inspect it with exec"
            ) from None
        return [place.news() + _page(text, first_line, lines)]

    @server.tool(structured_output=False)
    async def write_file(path: Path, content: str) -> str:
        """Write or replace a text file in the sandbox, and create its folders."""
        where, data = await absolute(path), content.encode(errors="replace")
        await place.call(lambda sandbox: sandbox.write_file(where, data))
        return f"{place.news()}wrote {len(data)} bytes to {where}"

    @server.tool(annotations=_READ_ONLY, structured_output=False)
    async def list_files(path: Path = ".") -> str:
        """List a folder in the sandbox, each entry with its size in bytes."""
        where = await absolute(path)
        found = await place.call(lambda sandbox: sandbox.list_dir(where))
        return place.news() + _listing(where, found)

    return server


def _instructions(provider: str, sandbox: Sandbox) -> str:
    spec = sandbox.spec
    workdir = spec.workdir or "the image's working folder, or /workspace"
    ends = "" if spec.lifetime is None else f" It ends {spec.lifetime:g} s after its first use."
    network = "with" if spec.network == "internet" else "without"
    return (
        f"A sandbox for this client alone ({provider}), {network} access to the internet. "
        f"Commands start in {workdir}. Files are kept until the client disconnects; "
        f"then everything is deleted.{ends}"
    )


def _format_result(ran: RunResultFields, result: ProcessResult, timeout: float) -> str:
    parts = [ran["stdout"], f"[stderr]\n{ran['stderr']}" if ran["stderr"] else ""]
    if result.truncated:
        parts.append(f"[the middle of a stream of more than {_KEPT} bytes was dropped]")
    if ran["timed_out"]:
        parts.append(killed_after(timeout))
    elif result.ending is Ending.OUT_OF_MEMORY:
        parts.append(f"[killed: out of the sandbox's memory; exit status {result.returncode}]")
    else:
        parts.append(f"[exit status {result.returncode}]")
    return "\n".join(part.removesuffix("\n") for part in parts if part)


def _page(text: str, first: int, count: int) -> str:
    every = lines_of(text)
    if first > max(len(every), 1):
        raise ToolError(f"first_line={first}: the file has {len(every)} lines")
    shown, size = every[first - 1 : first - 1 + count], 0
    for number, line in enumerate(shown):
        size += len(line)
        if size > _SHOWN and number:
            del shown[number:]
            break
    last = first - 1 + len(shown)
    page = truncate_middle("".join(shown), _SHOWN)
    if (first, last) == (1, len(every)):
        return page
    after = f"; read on with first_line={last + 1}" if last < len(every) else ""
    return f"{page.removesuffix(chr(10))}\n[lines {first} to {last} of {len(every)}{after}]"


def _listing(where: str, found: Sequence[FileInfo]) -> str:
    rows = [
        f"{info.size:>12} {posixpath.basename(info.path)}{_MARKS.get(info.type, '')}"
        for info in found[:_MAX_ENTRIES]
    ]
    if len(found) > _MAX_ENTRIES:
        rows.append(f"[... {len(found) - _MAX_ENTRIES} more ...]")
    return "\n".join([f"{where}: {len(found)} entries", *rows])


_MARKS = {FileType.DIRECTORY: "/", FileType.SYMLINK: "@", FileType.OTHER: "?"}


def _image(data: bytes) -> str | None:
    for form, start in (("png", b"\x89PNG\r\n\x1a\n"), ("jpeg", b"\xff\xd8\xff"), ("gif", b"GIF8")):
        if data.startswith(start):
            return form
    return "webp" if data[:4] == b"RIFF" and data[8:12] == b"WEBP" else None
