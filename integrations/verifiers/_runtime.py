"""verifiers' runtime interface, implemented by a sandbox."""

import posixpath
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager

import verifiers.v1 as vf
from verifiers.v1.runtimes.base import Runtime, RuntimeProcess

from sandboxkit import CommandStartError, Process, Sandbox, SandboxError
from sandboxkit.integrations._tools import stderr_of
from sandboxkit.integrations.verifiers._host_ports import HostPorts

_WORKDIR = "/workspace"
_NOT_STARTED = 127
_OUTPUT_LIMIT = 16 * 1024 * 1024
_BACKGROUND = 'log=$1; shift; exec >"$log" 2>&1 </dev/null; "$@" &'


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
