"""verifiers' contract of a runtime, kept by a sandbox."""

import posixpath
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager

import verifiers.v1 as vf
from verifiers.v1.runtimes.base import Runtime, RuntimeProcess

from sandboxkit import CommandStartError, Process, ProcessResult, Sandbox, SandboxError
from sandboxkit.integrations.verifiers._relay import Relay

_WORKDIR = "/workspace"
_NOT_STARTED = 127
_OUTPUT_LIMIT = 16 * 1024 * 1024
_BACKGROUND = 'log=$1; shift; exec >"$log" 2>&1 </dev/null; "$@" &'


@contextmanager
def infrastructure() -> Iterator[None]:
    """Whatever fails in here is verifiers' SandboxError, which it records on the trace as no outcome."""
    try:
        yield
    except SandboxError as error:
        raise vf.SandboxError(f"{type(error).__name__}: {error}") from error


class SandboxkitRuntime(Runtime):
    """A sandbox as a box to place runs into: `agent.run(task, runtime=box)`.

    Its owner calls `start` and `stop`, as `boxed` does. The program in it reaches the model through
    a relay, over the sandbox's own stream, so that it needs no network; that takes a `python3` there.
    In verifiers' terms it is a Docker box, whichever the backend: a container that is near, with all
    of the network or what the framework needs alone. The trace's `runtime` stays empty, for that
    would be untrue there.
    """

    is_local = True

    def __init__(self, sandbox: Sandbox, name: str | None = None) -> None:
        super().__init__(name)
        spec = sandbox.spec
        self._sandbox, self._relay = sandbox, Relay(sandbox)
        self._workdir = spec.workdir or _WORKDIR
        self.config = vf.DockerConfig(
            image=spec.image or "",
            workdir=self._workdir,
            allow=["*"] if spec.network == "internet" else [],
        )
        self.info = None

    @property
    def id(self) -> str | None:
        """The sandbox's id; None before its start."""
        return self._sandbox.id

    @property
    def provider_name(self) -> str:
        """The name of the backend, such as "docker"."""
        return self._sandbox.provider_name

    async def start(self) -> None:
        """Start the sandbox and the relay."""
        await self._sandbox.start()
        await self._relay.start()

    async def teardown(self) -> None:
        """Delete the sandbox; `stop` shields it."""
        await self._relay.close()
        await self._sandbox.stop()

    async def run(self, argv: list[str], env: dict[str, str]) -> vf.ProgramResult:
        """Run a command; what does not start has the status 127, as in a shell."""
        with infrastructure():
            try:
                result = await self._sandbox.exec(
                    argv, env=self.process_env(env), output_limit=_OUTPUT_LIMIT
                )
            except CommandStartError as error:
                if error.retryable:
                    raise
                return vf.ProgramResult(_NOT_STARTED, "", str(error))
        return vf.ProgramResult(result.returncode, result.stdout, _stderr(result))

    async def open_process(self, argv: list[str], env: dict[str, str]) -> RuntimeProcess:
        """Start a command whose input stays open."""
        with infrastructure():
            return _LiveProcess(self._sandbox.exec(argv, env=self.process_env(env), stdin=True))

    async def run_background(self, argv: list[str], env: Mapping[str, str], log: str) -> None:
        """Start a command that runs until `stop`. Raises vf.SandboxError where that cannot be."""
        begun = await self.run(["sh", "-c", _BACKGROUND, "sh", log, *argv], dict(env))
        if begun.exit_code:
            raise vf.SandboxError(f"{argv[0]!r} was not started in the background: {begun.stderr}")

    async def write(self, path: str, data: bytes) -> None:
        """Write a file, making its folders; a relative path is in the working directory."""
        with infrastructure():
            await self._sandbox.write_file(self._path(path), data)

    def host_url(self, url: str) -> str:
        """What a program in the sandbox uses for a URL of this machine."""
        return self._relay.url(url)

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
        return self._process.poll()

    async def terminate(self) -> None:
        await self.kill()

    async def kill(self) -> None:
        self._process.kill()


def _stderr(result: ProcessResult) -> str:
    if not result.truncated:
        return result.stderr
    return f"{result.stderr}\n[of more than {_OUTPUT_LIMIT} bytes the middle was dropped]"
