"""A sandbox's main command where the vendor has none: started, logged and awaited by `exec`."""

from sandboxkit.errors import ConfigurationError, SandboxStartError
from sandboxkit.provider import Provider, StreamName
from sandboxkit.providers._hosted import scripts
from sandboxkit.types import Command

__all__ = ["logs", "start", "wait"]


async def start(provider: Provider, sandbox_id: str, argv: tuple[str, ...]) -> None:
    """Start the main command in a sandbox that was just created."""
    status, output = await _sh(provider, sandbox_id, scripts.START_MAIN, *argv)
    if status:
        raise SandboxStartError(
            f"the main command could not be started: {output.decode(errors='replace')[-200:]}",
            provider=provider.name,
            sandbox_id=sandbox_id,
        )


async def logs(provider: Provider, sandbox_id: str) -> bytes:
    """See `Provider.logs`."""
    return await _of_main(provider, sandbox_id, scripts.LOG)


async def wait(provider: Provider, sandbox_id: str) -> int:
    """See `Provider.wait`."""
    return int(await _of_main(provider, sandbox_id, scripts.WAIT))


async def _of_main(provider: Provider, sandbox_id: str, script: str) -> bytes:
    status, output = await _sh(provider, sandbox_id, script)
    if status == scripts.NO_MAIN:
        raise ConfigurationError(
            f"sandbox {sandbox_id!r} has no main command; start it with command=...",
            provider=provider.name,
            sandbox_id=sandbox_id,
        )
    return output


async def _sh(
    provider: Provider, sandbox_id: str, script: str, *arguments: str
) -> tuple[int, bytes]:
    received: list[bytes] = []

    async def output(stream: StreamName, chunk: bytes) -> None:
        received.append(chunk)

    command = Command(("sh", "-c", script, "sh", *arguments))
    return await provider.exec(sandbox_id, command, output), b"".join(received)
