"""A client as it is where its backend's server is on another machine: no way but through a proxy."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock
from urllib.parse import urlsplit

from sandboxkit.providers.docker import _direct


async def no_way(pid: int, container_id: str, address: str) -> None:
    """Instead of `_direct.connect`: what it says of a daemon elsewhere."""
    return None


@contextmanager
def no_way_past_the_server(provider: str) -> Iterator[None]:
    """Keep this process from ways to a sandbox that do not lead through the server of its variables."""
    if provider == "kubernetes":
        os.environ["KUBECONFIG"] = str(_through(os.environ["SANDBOXKIT_CHAOS_API"]))
    with mock.patch.object(_direct, "connect", no_way if provider == "docker" else _direct.connect):
        yield


def _through(url: str) -> Path:
    """A copy of a kubeconfig of which only the server's address is another one."""
    lines = []
    for line in Path(os.environ["KUBECONFIG"]).read_text().splitlines():
        indent, found, server = line.partition("server: ")
        if found:
            name = urlsplit(server).hostname
            there = f"{indent}server: https://{urlsplit(url).netloc}"
            line = f"{there}\n{indent}tls-server-name: {name}"
        lines.append(line)
    copy = Path(os.environ["TMPDIR"]) / "kubeconfig"
    copy.write_text("\n".join(lines))
    return copy
