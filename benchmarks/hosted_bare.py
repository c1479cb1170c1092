"""The vendors' SDKs as sides of `benchmarks.hosted`, used as a careful user would use them."""

import asyncio
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from importlib.metadata import version
from typing import Any

from benchmarks.hosted_worker import FILES, MANY, MEGABYTE, MUCH, SMALL, serve

LIFETIME = 600
FILL = f"mkdir -p /tmp/many && cd /tmp/many && for n in $(seq {FILES}); do : >$n; done"


class Bare(ABC):
    """An SDK on an event loop that keeps running. Any: a sandbox is the SDK's own object."""

    def __init__(self, baked: str | None) -> None:
        """`baked` is the image that contains the agent, as sandboxkit names it; None: the default image."""
        self._baked = baked
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        self._wait(self._connect())
        self._sandbox = self._wait(self._create())
        self._wait(self._fill(self._sandbox))

    @abstractmethod
    async def _connect(self) -> None: ...

    @abstractmethod
    async def _create(self) -> Any: ...

    @abstractmethod
    async def _delete(self, sandbox: Any) -> None: ...

    @abstractmethod
    async def _true(self, sandbox: Any) -> None: ...

    @abstractmethod
    async def _file(self, sandbox: Any, data: bytes) -> None:
        """Write a file and read it."""

    @abstractmethod
    async def _fill(self, sandbox: Any) -> None:
        """Run FILL."""

    @abstractmethod
    async def _many(self, sandbox: Any) -> int:
        """List /tmp/many with its files' sizes and times; return how many there are."""

    @abstractmethod
    async def _output(self, sandbox: Any) -> int: ...

    async def _disconnect(self) -> None:
        pass

    def true(self) -> None:
        """See `Side`."""
        self._wait(self._true(self._sandbox))

    def first(self) -> Callable[[], object]:
        """See `Side`."""

        async def run() -> Any:
            sandbox = await self._create()
            await self._true(sandbox)
            return sandbox

        sandbox = self._wait(run())
        return lambda: self._wait(self._delete(sandbox))

    def at_once(self) -> None:
        """See `Side`."""

        async def run() -> None:
            await asyncio.gather(*(self._true(self._sandbox) for _ in range(MANY)))

        self._wait(run())

    def small_file(self) -> None:
        """See `Side`."""
        self._wait(self._file(self._sandbox, SMALL))

    def megabyte(self) -> None:
        """See `Side`."""
        self._wait(self._file(self._sandbox, MEGABYTE))

    def listing(self) -> None:
        """See `Side`."""
        assert self._wait(self._many(self._sandbox)) == FILES

    def output(self) -> None:
        """See `Side`."""
        assert self._wait(self._output(self._sandbox)) == MUCH

    def close(self) -> None:
        """See `Side`."""
        self._wait(self._delete(self._sandbox))
        self._wait(self._disconnect())
        self._loop.call_soon_threadsafe(self._loop.stop)

    def _wait(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(120)


class E2B(Bare):
    """E2B's SDK."""

    async def _connect(self) -> None:
        from e2b import AsyncSandbox  # each SDK is an extra of its own

        self._sdk = AsyncSandbox

    async def _create(self) -> Any:
        return await self._sdk.create(
            template=self._baked, timeout=LIFETIME, allow_internet_access=False
        )

    async def _delete(self, sandbox: Any) -> None:
        await sandbox.kill()

    async def _true(self, sandbox: Any) -> None:
        assert (await sandbox.commands.run("/bin/true")).exit_code == 0

    async def _file(self, sandbox: Any, data: bytes) -> None:
        await sandbox.files.write("/tmp/file", data)
        assert bytes(await sandbox.files.read("/tmp/file", format="bytes")) == data

    async def _fill(self, sandbox: Any) -> None:
        await sandbox.commands.run(FILL)

    async def _many(self, sandbox: Any) -> int:
        return len(await sandbox.files.list("/tmp/many"))

    async def _output(self, sandbox: Any) -> int:
        done = await sandbox.commands.run(f"head -c {MUCH} /dev/zero", timeout=120)
        return len(done.stdout)


class Daytona(Bare):
    """Daytona's SDK."""

    async def _connect(self) -> None:
        from daytona import AsyncDaytona, CreateSandboxFromSnapshotParams

        self._daytona: Any = AsyncDaytona()
        self._params = CreateSandboxFromSnapshotParams(
            snapshot=self._baked and self._baked.removeprefix("snapshot:"),
            network_block_all=True,
            ttl_minutes=LIFETIME // 60,
        )

    async def _create(self) -> Any:
        return await self._daytona.create(self._params)

    async def _delete(self, sandbox: Any) -> None:
        await self._daytona.delete(sandbox)

    async def _true(self, sandbox: Any) -> None:
        assert (await sandbox.process.exec("/bin/true")).exit_code == 0

    async def _file(self, sandbox: Any, data: bytes) -> None:
        await sandbox.fs.upload_file(data, "/tmp/file")
        assert await sandbox.fs.download_file("/tmp/file") == data

    async def _fill(self, sandbox: Any) -> None:
        await sandbox.process.exec(FILL)

    async def _many(self, sandbox: Any) -> int:
        return len(await sandbox.fs.list_files("/tmp/many"))

    async def _output(self, sandbox: Any) -> int:
        return len((await sandbox.process.exec(f"head -c {MUCH} /dev/zero", timeout=120)).result)

    async def _disconnect(self) -> None:
        await self._daytona.close()


class Modal(Bare):
    """Modal's SDK; files through commands."""

    async def _connect(self) -> None:
        import modal

        self._client: Any = await modal.Client.from_credentials.aio("ak-emulator", "as-emulator")
        self._app = await modal.App.lookup.aio(
            "sandboxkit-benchmark", create_if_missing=True, client=self._client
        )
        image = (
            modal.Image.from_id(self._baked, client=self._client)
            if self._baked
            else modal.Image.from_registry("python:3.11-slim")
        )
        self._image = await image.build.aio(self._app)
        self._modal = modal

    async def _create(self) -> Any:
        return await self._modal.Sandbox.create.aio(
            *("sleep", str(LIFETIME)),
            app=self._app,
            image=self._image,
            timeout=LIFETIME,
            block_network=True,
            client=self._client,
        )

    async def _delete(self, sandbox: Any) -> None:
        await sandbox.terminate.aio()

    async def _true(self, sandbox: Any) -> None:
        await self._run(sandbox, "true")

    async def _file(self, sandbox: Any, data: bytes) -> None:
        process = await sandbox.exec.aio("sh", "-c", "cat > /tmp/file", text=False)
        process.stdin.write(data)
        process.stdin.write_eof()
        await process.stdin.drain.aio()
        assert await process.wait.aio() == 0
        assert await self._run(sandbox, "cat", "/tmp/file") == data

    async def _fill(self, sandbox: Any) -> None:
        await self._run(sandbox, "sh", "-c", FILL)

    async def _many(self, sandbox: Any) -> int:
        argv = ("find", "/tmp/many", "-mindepth", "1", "-printf", "%f %s %y %T@\\n")
        return len((await self._run(sandbox, *argv)).splitlines())

    async def _output(self, sandbox: Any) -> int:
        return len(await self._run(sandbox, "head", "-c", str(MUCH), "/dev/zero"))

    async def _run(self, sandbox: Any, *argv: str) -> bytes:
        process = await sandbox.exec.aio(*argv, text=False)
        printed, _, status = await asyncio.gather(
            process.stdout.read.aio(), process.stderr.read.aio(), process.wait.aio()
        )
        assert status == 0
        return bytes(printed)

    async def _disconnect(self) -> None:
        await asyncio.to_thread(self._client.close)


SDKS: dict[str, type[Bare]] = {"e2b": E2B, "daytona": Daytona, "modal": Modal}


if __name__ == "__main__":
    name = sys.argv[1]
    serve(SDKS[name](next(iter(sys.argv[2:]), None)), f"{name} {version(name)}")
