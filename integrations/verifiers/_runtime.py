"""verifiers' runtime interface, implemented by a sandbox, and ports by which its programs reach the host."""

import asyncio
import functools
import ipaddress
import posixpath
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from urllib.parse import urlsplit, urlunsplit

import verifiers.v1 as vf
from verifiers.v1.runtimes.base import Runtime, RuntimeProcess

from sandboxkit import CommandStartError, ConfigurationError, Process, Sandbox, SandboxError
from sandboxkit.integrations._tools import stderr_of
from sandboxkit.tunnels import PortConnection, Served

_WORKDIR = "/workspace"
_NOT_STARTED = 127
_OUTPUT_LIMIT = 16 * 1024 * 1024
_BACKGROUND = 'log=$1; shift; exec >"$log" 2>&1 </dev/null; "$@" &'
_PORTS = 8
_CHUNK_BYTES = 64 * 1024


@contextmanager
def infrastructure() -> Iterator[None]:
    """Re-raise sandboxkit's errors as verifiers' SandboxError, which is not scored as an outcome."""
    try:
        yield
    except SandboxError as error:
        raise vf.SandboxError(f"{type(error).__name__}: {error}") from error


class SandboxkitRuntime(Runtime):
    """A sandbox as a verifiers runtime: `agent.run(task, runtime=box)`.

    The caller calls `start` and `stop`, as `boxed` does. Programs in the sandbox reach the model through
    forwarded ports, which need no network. verifiers treats it as a local Docker runtime on every
    backend, with either full network access or only the connections that the framework needs. The
    trace's `runtime` stays empty, since "docker" could be wrong.
    """

    is_local = True

    def __init__(self, sandbox: Sandbox, name: str | None = None) -> None:
        super().__init__(name)
        spec = sandbox.spec
        self._sandbox, self._host_ports = sandbox, HostPorts(sandbox)
        self._workdir = spec.workdir or _WORKDIR  # replaced by the real one at the start
        self.config = vf.DockerConfig(
            image=spec.image or "",
            workdir=self._workdir,
            allow=["*"] if spec.network == "internet" else [],
        )
        self.info = None

    @property
    def id(self) -> str | None:
        """The sandbox's id; None before the start."""
        return self._sandbox.id

    @property
    def provider_name(self) -> str:
        """The name of the backend, such as "docker"."""
        return self._sandbox.provider_name

    async def start(self) -> None:
        """Start the sandbox, and forward its ports to the host."""
        await self._sandbox.start()
        self._workdir = await self._sandbox.workdir()
        self.config = self.config.model_copy(update={"workdir": self._workdir})
        await self._host_ports.start()

    async def teardown(self) -> None:
        """Delete the sandbox; `stop` shields this from cancellation."""
        await self._host_ports.close()
        await self._sandbox.stop()

    async def run(self, argv: list[str], env: dict[str, str]) -> vf.ProgramResult:
        """Run a command. If it cannot be started, the status is 127, as in a shell."""
        with infrastructure():
            try:
                result = await self._sandbox.exec(
                    argv, env=self.process_env(env), output_limit=_OUTPUT_LIMIT
                )
            except CommandStartError as error:
                if error.retryable:
                    raise
                return vf.ProgramResult(_NOT_STARTED, "", str(error))
        return vf.ProgramResult(result.returncode, result.stdout, stderr_of(result, _OUTPUT_LIMIT))

    async def open_process(self, argv: list[str], env: dict[str, str]) -> RuntimeProcess:
        """Start a command with an open stdin."""
        with infrastructure():
            return _LiveProcess(self._sandbox.exec(argv, env=self.process_env(env), stdin=True))

    async def run_background(self, argv: list[str], env: Mapping[str, str], log: str) -> None:
        """Start a command that runs until `stop`. Raises vf.SandboxError if it does not start."""
        begun = await self.run(["sh", "-c", _BACKGROUND, "sh", log, *argv], dict(env))
        if begun.exit_code:
            raise vf.SandboxError(f"{argv[0]!r} was not started in the background: {begun.stderr}")

    async def write(self, path: str, data: bytes) -> None:
        """Write a file and create its folders; relative paths start in the working directory."""
        with infrastructure():
            await self._sandbox.write_file(self._path(path), data)

    def host_url(self, url: str) -> str:
        """Return the URL by which a program in the sandbox reaches a URL of the host."""
        return self._host_ports.url(url)

    async def _read(self, path: str, max_bytes: int | None = None) -> bytes:
        if max_bytes is not None:
            data: bytes = await super()._read(path, max_bytes)
            return data
        with infrastructure():
            return await self._sandbox.read_file(self._path(path))

    def _path(self, path: str) -> str:
        return posixpath.normpath(posixpath.join(self._workdir, path))


class _LiveProcess(RuntimeProcess):
    def __init__(self, process: Process) -> None:
        self._process = process
        self.stdout: AsyncIterator[bytes] = aiter(process.stdout.bytes())
        self.stderr: AsyncIterator[bytes] = aiter(process.stderr.bytes())

    async def write(self, data: bytes) -> None:
        await self._process.stdin.write(data)

    async def wait(self) -> int:
        with infrastructure():
            return (await self._process).returncode

    async def poll(self) -> int | None:
        with infrastructure():
            return self._process.poll()

    async def terminate(self) -> None:
        await self.kill()

    async def kill(self) -> None:
        self._process.kill()


class HostPorts:
    """Forwards ports of one sandbox to ports of the host. Call `start` before `url`, `close` at the end."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self._failed = "it is not started"
        self._inside: list[Served] = []
        self._ports: list[int] = []

    async def start(self) -> None:
        """Listen on ports in the sandbox. If its backend does not support that, `url` raises an error."""
        try:
            for number in range(_PORTS):
                handler = functools.partial(self._carry, number)
                self._inside.append(await self._sandbox.serve(0, handler))
        except ConfigurationError as error:
            self._failed = str(error)

    def url(self, url: str) -> str:
        """Return the URL by which the sandbox reaches a loopback URL of the host.

        Returns other URLs unchanged. Raises vf.SandboxError if the backend does not support ports, or if
        no port is left.
        """
        parts = urlsplit(url)
        if not _is_loopback(parts.hostname or ""):
            return url
        if not self._inside:
            raise vf.SandboxError(f"the sandbox cannot reach {url}: {self._failed}")
        port = parts.port or (443 if parts.scheme == "https" else 80)
        if port not in self._ports:
            if len(self._ports) == _PORTS:
                raise vf.SandboxError(f"the sandbox has no port left for {url}")
            self._ports.append(port)
        inside = self._inside[self._ports.index(port)]
        return urlunsplit(parts._replace(netloc=f"127.0.0.1:{inside.port}"))

    async def close(self) -> None:
        """Close the ports and all connections."""
        for each in self._inside:
            await each.close()

    async def _carry(self, number: int, connection: PortConnection) -> None:
        """Forward a connection to the host's port; if one side breaks, close the other."""
        if number >= len(self._ports):
            return  # the port has no URL yet
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self._ports[number])
        except OSError:
            return
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(_outward(connection, writer))
                both.create_task(_inward(reader, connection))
        except* ConnectionError:
            writer.transport.abort()
        finally:
            writer.close()


async def _outward(connection: PortConnection, writer: asyncio.StreamWriter) -> None:
    while data := await connection.receive(_CHUNK_BYTES):
        writer.write(data)
        await writer.drain()
    writer.write_eof()


async def _inward(reader: asyncio.StreamReader, connection: PortConnection) -> None:
    while data := await reader.read(_CHUNK_BYTES):
        await connection.send(data)
    await connection.send_eof()


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
