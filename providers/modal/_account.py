"""One connection to Modal: the SDK's client, our app, built images, and bounded calls."""

from collections import defaultdict
from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio
import modal
from modal.config import config

from sandboxkit.errors import ConfigurationError, SandboxError
from sandboxkit.providers._hosted.deadline import SILENCE, bounded
from sandboxkit.providers.modal._errors import HANDLED, translate

__all__ = ["Account"]

T = TypeVar("T")


class Account:
    """Connects at the first call. The SDK has an event loop of its own, in a thread of its own."""

    def __init__(self, *, app: str, timeout: float, build_timeout: float) -> None:
        self._app_name, self.timeout, self._build_timeout = app, timeout, build_timeout
        self.silence = min(timeout, SILENCE)
        """Seconds that any call may take that opens no connection and makes nothing."""
        self._client: modal.Client | None = None
        self._app: modal.App | None = None
        self._images: dict[str, modal.Image] = {}
        self._connecting = anyio.Lock()
        self._building: defaultdict[str, anyio.Lock] = defaultdict(anyio.Lock)

    async def client(self) -> modal.Client:
        """The SDK's client, of this object alone: closing it leaves the user's own be."""
        async with self._connecting:
            if self._client is not None:
                return self._client
            token_id, token_secret = _credentials()
            # Cancelled in between, the SDK would leave a connection behind.
            with anyio.CancelScope(shield=True):
                self._client = await self.call(
                    lambda: modal.Client.from_credentials.aio(token_id, token_secret),
                    what=f"open a connection to {config['server_url']}",
                    seconds=self.timeout,
                )
            assert self._client is not None
            return self._client

    async def app(self) -> modal.App:
        """The app that our sandboxes belong to; made when there is none."""
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
        """A built image: a registry's reference, or the id of one of Modal's ("im-...")."""
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

    async def call(
        self,
        function: Callable[[], Awaitable[T]],
        *,
        what: str,
        sandbox_id: str | None = None,
        seconds: float | None = None,
    ) -> T:
        """Await `function()` for at most `seconds`, or `silence`; `what` completes "Modal cannot ..." in errors.

        The SDK repeats what failed for a moment by itself, so nothing is repeated here.
        """
        seconds = self.silence if seconds is None else seconds
        try:
            return await bounded(
                function(), seconds, provider="modal", what=what, sandbox_id=sandbox_id
            )
        except SandboxError:
            raise
        except HANDLED as error:
            raise translate(error, what, sandbox_id) from error

    async def aclose(self) -> None:
        """Close the connection; the next call opens another one."""
        client, self._client, self._app = self._client, None, None
        self._images.clear()
        if client is not None:
            with anyio.move_on_after(self.silence):
                await client.close.aio()


def _credentials() -> tuple[str, str]:
    """The token of the environment or of Modal's own configuration file."""
    url = str(config["server_url"])
    if not url.startswith(("https://", "http://")):
        raise ConfigurationError(
            f"MODAL_SERVER_URL={url!r} is not a URL; unset it", provider="modal"
        )
    found = []
    for name, prefix in (("token_id", "ak-"), ("token_secret", "as-")):
        value = str(config[name] or "")
        variable = f"MODAL_{name.upper()}"
        if not value:
            raise ConfigurationError(
                f"{variable} is not set: `modal token new` makes a token, or set MODAL_TOKEN_ID "
                "and MODAL_TOKEN_SECRET",
                provider="modal",
            )
        if not value.startswith(prefix) or not value.isascii() or not value.isprintable():
            raise ConfigurationError(
                f"{variable} is malformed: it begins with {prefix!r}; make a token with "
                "`modal token new`",
                provider="modal",
            )
        found.append(value)
    return found[0], found[1]
