"""OpenEnv environments in sandboxes: a ContainerProvider that starts their images on any of our providers."""

import concurrent.futures
import time
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import httpx
from openenv.core.containers.runtime import ContainerProvider

from sandboxkit import ConfigurationError, Operation, Process, Sandbox, Session

T = TypeVar("T")
_PORT = 8000
_SERVE = rf"""
file=/app/env/openenv.yaml
[ -f "$file" ] || file=$(find /app -maxdepth 4 -name openenv.yaml -print -quit 2>/dev/null)
app=$(sed -n 's/^app: *//p' "$file" 2>/dev/null | tr -d "\"'")
[ -n "$app" ] || {{ echo "no openenv.yaml with an app: below /app; give command=" >&2; exit 1; }}
cd "$(dirname "$file")" && exec python -m uvicorn "$app" --host 127.0.0.1 --port {_PORT}
"""
"""The server of an image that `openenv build` made, in the place of its CMD, which a sandbox does not run."""


class SandboxkitContainerProvider(ContainerProvider):
    """Runs one OpenEnv environment in a sandbox of `session`; its server is reached at a port of this machine.

        provider = SandboxkitContainerProvider(session)
        client = await GenericEnvClient.from_docker_image("echo-env:latest", provider=provider)

    `command` starts a server on port 8000 of the sandbox's loopback; without it, the server is the one that the
    image's openenv.yaml names. `options` are those of a sandbox, such as `image`, for which `start_container` may give
    others. The sandbox needs no network, unless the environment itself does.
    """

    def __init__(
        self,
        session: Session,
        *,
        command: Sequence[str] = ("sh", "-c", _SERVE),
        **options: Any,  # SandboxSpec's, as Session takes them
    ) -> None:
        self._session, self._command, self._options = session, tuple(command), options
        self._sandbox: Sandbox | None = None
        self._server: Process | None = None

    def start_container(
        self,
        image: str | None = None,
        port: int | None = None,
        env_vars: Mapping[str, str] | None = None,
        **options: Any,  # SandboxSpec's, as Session takes them
    ) -> str:
        """Start a sandbox and its server; return the server's URL. `port` is that of this machine; None: a free one.

        Raises ConfigurationError if one runs already, and the errors of a sandbox's start.
        """
        if self._sandbox is not None:
            raise ConfigurationError(
                "this provider's sandbox runs: call stop_container() first, or make another provider"
            )
        given = self._options | options | ({} if image is None else {"image": image})
        self._sandbox = sandbox = self._session.sandbox(**given)
        try:
            self._server = sandbox.exec(self._command, env=env_vars)
            return _result(sandbox.expose(_PORT, host_port=port or 0)).url
        except BaseException:
            self.stop_container()
            raise

    def wait_for_ready(self, base_url: str, timeout_s: float = 120.0) -> None:
        """Wait until the server says that it is healthy.

        Raises TimeoutError, and RuntimeError with the end of what it wrote to stderr if it has ended.
        """
        until = time.monotonic() + timeout_s
        while time.monotonic() < until:
            if self._server is not None and self._server.done():
                ended = self._server.result()
                raise RuntimeError(
                    f"the server ended with status {ended.returncode}: {ended.stderr[-2000:]}"
                )
            try:
                if httpx.get(f"{base_url}/health", timeout=2.0, trust_env=False).is_success:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.1)
        raise TimeoutError(
            f"the server at {base_url} was not ready within {timeout_s:g} s; give a larger timeout_s"
        )

    def stop_container(self) -> None:
        """Stop the sandbox, and with it the server and its port. Idempotent."""
        if self._sandbox is not None:
            _result(self._sandbox.stop())
        self._sandbox = self._server = None

    close = stop_container


def _result(operation: Operation[T]) -> T:
    """Block for a result, on an event loop too: OpenEnv's clients call a provider on theirs."""
    concurrent.futures.wait([operation])
    return operation.result()
