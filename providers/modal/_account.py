"""A connection to Modal: the SDK's client, our app, built images, and calls with time limits."""

import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio
import modal
from modal.config import config

from sandboxkit.errors import ConfigurationError, SandboxError
from sandboxkit.providers._hosted.ambiguous import SILENCE, SilenceError, bounded
from sandboxkit.providers.modal._errors import HANDLED, translate

_MOST_SILENT = 4
"""How many connections that fell silent stay open for calls in flight; the oldest is closed first."""

T = TypeVar("T")


class ModalAccount:
    """Connects at the first call. The SDK runs its own event loop in its own thread."""

    def __init__(self, *, app: str, timeout: float, build_timeout: float) -> None:
        self._app_name, self.timeout, self._build_timeout = app, timeout, build_timeout
        self.silence = min(timeout, SILENCE)
        """Default time limit (s) of a call; opening a connection and creations may take longer."""
        self._client: modal.Client | None = None
        self._silent: list[modal.Client] = []
        self._replaced = float("-inf")
        self.connection = 0
        """The number of the connection in use; another one means that handles made before may be silent."""
        self._app: modal.App | None = None
        self._images: dict[str, modal.Image] = {}
        self._connecting = anyio.Lock()
        self._building: defaultdict[str, anyio.Lock] = defaultdict(anyio.Lock)

    async def client(self) -> modal.Client:
        """Return an SDK client of our own, so that closing it does not affect the user's client."""
        async with self._connecting:
            if self._client is not None:
                return self._client
            token_id, token_secret = _credentials()
            # Shielded: when cancelled here, the SDK would leave a connection open.
            with anyio.CancelScope(shield=True):
                self._client = await self.call(
                    lambda: modal.Client.from_credentials.aio(token_id, token_secret),
                    what=f"open a connection to {config['server_url']}",
                    seconds=self.timeout,
                )
            assert self._client is not None
            return self._client

    async def app(self) -> modal.App:
        """Return the app that our sandboxes belong to; it is created if missing."""
        client = await self.client()
        async with self._connecting:
            if self._app is not None:
                return self._app
            self._app = app = await self.call(
                lambda: modal.App.lookup.aio(self._app_name, client=client, create_if_missing=True),
                what=f"open the app {self._app_name!r}",
                seconds=self.timeout,
            )
            return app

    async def image(self, reference: str) -> modal.Image:
        """Return a built image; `reference` is a registry reference or a Modal image id ("im-...")."""
        app = await self.app()
        client = await self.client()
        async with self._building[reference]:
            if reference not in self._images:
                self._images[reference] = await self.call(
                    lambda: (
                        modal.Image.from_id(reference, client=client)
                        if reference.startswith("im-")
                        else modal.Image.from_registry(reference)
                    ).build.aio(app),
                    what=f"start a sandbox from image {reference!r}",
                    seconds=self._build_timeout,
                )
            return self._images[reference]

    def forget(self, reference: str) -> None:
        """Drop an image from the cache, so that its next use builds or looks it up again."""
        self._images.pop(reference, None)
        self._building.pop(reference, None)

    @property
    def name(self) -> str:
        """A string that identifies the account. Raises ConfigurationError without credentials."""
        return " ".join((str(config["server_url"]), str(config["environment"]), *_credentials()))

    async def call(
        self,
        function: Callable[[], Awaitable[T]],
        *,
        what: str,
        sandbox_id: str | None = None,
        seconds: float | None = None,
    ) -> T:
        """Await `function()` for at most `seconds`, by default `silence`, and return its result.

        `what` completes "Modal cannot ..." in errors. The SDK itself retries transient failures, so
        there is no retry here.
        """
        seconds = self.silence if seconds is None else seconds
        used = self._client
        try:
            return await bounded(function(), seconds, provider="modal", what=what)
        except SilenceError:
            await self._replace(used)
            raise
        except SandboxError:
            raise
        except HANDLED as error:
            raise translate(error, what, sandbox_id) from error

    async def _replace(self, client: modal.Client | None) -> None:
        """Let the next call open another connection; the SDK gives up a stalled one after 40 s only.

        A call over the handle of an earlier connection may be the silent one, so this happens at most
        once in the time limit of a call.
        """
        now = time.monotonic()
        if client is None or client is not self._client or now < self._replaced + self.silence:
            return
        self.connection += 1
        self._silent.append(client)
        self._client, self._app, self._replaced = None, None, now
        self._images.clear()
        if len(self._silent) > _MOST_SILENT:
            await self._close(self._silent.pop(0))

    async def _close(self, client: modal.Client) -> None:
        with anyio.move_on_after(self.silence):
            await client.close.aio()

    async def aclose(self) -> None:
        """Close the connections; the next call opens a new one."""
        clients = [*self._silent, *([self._client] if self._client is not None else [])]
        self._client = self._app = None
        self._silent.clear()
        self._images.clear()
        for client in clients:
            await self._close(client)


def _credentials() -> tuple[str, str]:
    """Return the token's id and secret, from the environment or Modal's configuration file."""
    url = str(config["server_url"])
    if not url.startswith(("https://", "http://")):
        raise ConfigurationError(f"MODAL_SERVER_URL={url!r} is not a URL; unset it")
    found = []
    for name, prefix in (("token_id", "ak-"), ("token_secret", "as-")):
        value = str(config[name] or "")
        variable = f"MODAL_{name.upper()}"
        if not value:
            raise ConfigurationError(
                f"{variable} is not set: `modal token new` makes a token, or set MODAL_TOKEN_ID "
                "and MODAL_TOKEN_SECRET"
            )
        if not value.startswith(prefix) or not value.isascii() or not value.isprintable():
            raise ConfigurationError(
                f"{variable} is malformed: it begins with {prefix!r}; make a token with "
                "`modal token new`"
            )
        found.append(value)
    return found[0], found[1]
