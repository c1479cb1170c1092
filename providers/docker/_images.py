"""Looks up images on the daemon, and pulls missing ones with progress."""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import anyio
from docker.errors import APIError, ImageNotFound  # type: ignore[import-untyped]  # ships no types
from docker.utils import parse_repository_tag  # type: ignore[import-untyped]

from sandboxkit.errors import (
    AuthenticationError,
    ConfigurationError,
    ImageNotFoundError,
    ProviderUnavailableError,
    SandboxError,
)
from sandboxkit.providers.docker._container import ContainerImage
from sandboxkit.providers.docker._daemon import Daemon
from sandboxkit.providers.docker._errors import explanation, is_status

_log = logging.getLogger("sandboxkit.docker")
_LOG_EVERY = 2.0
_KNOWN_FOR = 1.0
"""Seconds for which a lookup is cached; a lookup is a twentieth of a start's work."""


@dataclass(frozen=True, slots=True)
class PullProgress:
    """The progress of a pull, in compressed bytes of the layers known so far."""

    image: str
    status: str
    current: int
    total: int


class Images:
    """The images of one daemon; concurrent requests for an image pull it once."""

    def __init__(self, daemon: Daemon, on_pull: Callable[[PullProgress], None] | None) -> None:
        self._daemon = daemon
        self._on_pull = on_pull
        self._pulls: dict[str, anyio.Lock] = {}
        self._known: dict[str, tuple[ContainerImage, float]] = {}
        """Image by reference, with the time at which the cached lookup expires."""

    async def ensure(self, reference: str) -> ContainerImage:
        """Return the image, pulled if it is missing; the lookup may be a second old.

        Raises ImageNotFoundError when no registry has it or none can be reached.
        """
        asked = time.monotonic()
        known, until = self._known.get(reference, (None, asked))
        if known is not None and asked < until:
            return known
        image = await self._inspect(reference)
        if image is None:
            async with self._pulls.setdefault(reference, anyio.Lock()):
                image = await self._inspect(reference)
                if image is None:
                    await self._pull(reference)
                    image = await self._inspect(reference)
        if image is None:
            raise self._not_found(reference, "it was pulled, but is missing")
        self._known[reference] = image, asked + _KNOWN_FOR
        return image

    def forget(self, reference: str) -> None:
        """Drop the cached lookup, because the daemon no longer has the image."""
        self._known.pop(reference, None)

    async def present(self, reference: str) -> bool:
        """Whether the daemon already has the image."""
        return await self._inspect(reference) is not None

    async def _inspect(self, reference: str) -> ContainerImage | None:
        try:
            return await self._daemon.call(
                lambda api: _image(reference, api.inspect_image(reference)),
                what=f"look up the image {reference!r}",
                allow=lambda error: isinstance(error, ImageNotFound) or is_status(error, 400, 404),
            )
        except ImageNotFound:
            return None
        except Exception as error:
            if isinstance(error, SandboxError) or not is_status(error, 400, 404):
                raise
            if is_status(error, 404):
                return None
            raise _invalid(reference, error) from error

    async def _pull(self, reference: str) -> None:
        stop = threading.Event()
        _log.info("pulling image %s", reference)
        try:
            await self._daemon.call(
                lambda api: self._pull_in_thread(api, reference, stop),
                what=f"pull the image {reference!r}",
                allow=lambda error: is_status(error, 400, 401, 403, 404, 500) or _timed_out(error),
            )
        except SandboxError:
            raise
        except Exception as error:
            if is_status(error, 400):
                raise _invalid(reference, error) from error
            if not isinstance(error, APIError):
                raise ProviderUnavailableError(
                    f"the pull of image {reference!r} stalled: no more progress from Docker at "
                    f"{self._daemon.endpoint.url} or the registry; try again, or see the daemon's log"
                ) from error
            reason = "the registry does not answer" if _timed_out(error) else explanation(error)
            raise self._not_found(reference, reason) from error
        finally:
            stop.set()
        _log.info("pulled image %s", reference)

    def _pull_in_thread(self, api: Any, reference: str, stop: threading.Event) -> None:
        repository, tag = parse_repository_tag(reference)
        layers: dict[str, tuple[int, int]] = {}
        logged = time.monotonic()
        for event in api.pull(repository, tag=tag or "latest", stream=True, decode=True):
            if stop.is_set():
                return
            if "error" in event:
                raise self._refused(reference, str(event["error"]))
            detail = event.get("progressDetail") or {}
            if "total" in detail and event.get("status") == "Downloading":
                layers[str(event.get("id"))] = (int(detail.get("current", 0)), int(detail["total"]))
            progress = PullProgress(
                image=reference,
                status=str(event.get("status", "")),
                current=sum(current for current, _ in layers.values()),
                total=sum(total for _, total in layers.values()),
            )
            if time.monotonic() - logged > _LOG_EVERY:
                logged = time.monotonic()
                _log.info(
                    "pulling image %s: %s, %.1f of %.1f MB",
                    reference,
                    progress.status,
                    progress.current / 1e6,
                    progress.total / 1e6,
                )
            if self._on_pull is not None:
                self._on_pull(progress)

    def _refused(self, reference: str, reason: str) -> SandboxError:
        if "toomanyrequests" in reason or "rate limit" in reason:
            return ProviderUnavailableError(
                f"the registry throttles pulls of {reference!r}: {reason}"
            )
        return self._not_found(reference, reason)

    def _not_found(self, reference: str, reason: str) -> SandboxError:
        if "unauthorized" in reason.lower():
            return AuthenticationError(
                f"the registry refuses image {reference!r}: {reason}; run `docker login`"
            )
        return ImageNotFoundError(
            f"image {reference!r} is not on the daemon at {self._daemon.endpoint.url} and cannot "
            f"be pulled: {reason}. Check the name; build or load it there (`docker build -t "
            f"{reference} .`, `docker load`), run `docker login` if it is private, or choose "
            "another with image= or SANDBOXKIT_DOCKER_IMAGE"
        )


# Any: the daemon's answers are untyped.
def _image(reference: str, answer: Any) -> ContainerImage:
    config = answer["Config"] or {}
    return ContainerImage(
        reference=reference,
        id=str(answer["Id"]),
        user=str(config.get("User") or ""),
        volumes=tuple(config.get("Volumes") or ()),
        env=tuple(config.get("Env") or ()),
        workdir=str(config.get("WorkingDir") or ""),
    )


def _invalid(reference: str, error: Exception) -> ConfigurationError:
    return ConfigurationError(
        f"image {reference!r} is not a valid reference: {explanation(error)}; "
        "write it as in python:3.11-slim"
    )


def _timed_out(error: BaseException) -> bool:
    return "timed out" in str(error).lower()
