"""Builds Dockerfiles for one daemon: with docker's command line, or with buildah, whose images it loads."""

import secrets
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio

from sandboxkit.errors import SandboxError
from sandboxkit.providers import _builders
from sandboxkit.providers.docker._daemon import Daemon
from sandboxkit.types import Dockerfile

_REPOSITORY = "sandboxkit-built"


async def builders(daemon: Daemon) -> list[_builders.Builder]:
    """Return the builders that are here, docker's own first."""
    # Without -H the command line finds the same daemon as the provider did, and its certificates.
    options = () if daemon.endpoint.tls else ("-H", daemon.endpoint.url)
    return [*await _builders.docker(*options), *await _builders.buildah()]


@asynccontextmanager
async def built(
    daemon: Daemon, file: Dockerfile, network: str, tell: Callable[[str], None]
) -> AsyncIterator[str]:
    """Build an image and yield its name, which is removed afterwards; see `Provider.built_image`."""
    builder = _builders.chosen(await builders(daemon), file)
    # A name of this build alone, so that no other build removes it.
    name = f"{_REPOSITORY}:{secrets.token_hex(8)}"
    try:
        if builder.is_docker:
            await _builders.build(builder, file, name, network, tell)
        else:
            with tempfile.TemporaryDirectory() as folder:
                archive = f"{folder}/image"
                await _builders.build_archive(builder, file, name, network, tell, archive)
                await daemon.call(lambda api: _load(api, archive), what="load an image")
        yield name
    finally:
        with anyio.CancelScope(shield=True), suppress(SandboxError):  # it was perhaps not built
            await daemon.call(lambda api: api.remove_image(name), what="remove an image's name")


# Any: the docker package is untyped.
def _load(api: Any, archive: str) -> None:
    with open(archive, "rb") as file:
        for event in api.load_image(file, quiet=True):
            if "error" in event:
                raise SandboxError(f"the daemon cannot load an image of buildah: {event['error']}")
