"""Access to sandboxes without a session, through one provider object per process, name and settings."""

import os
import threading

from sandboxkit import _registry, _tags
from sandboxkit._calls import _arguments
from sandboxkit._life import _exit
from sandboxkit._operation import Operation
from sandboxkit.provider import Provider
from sandboxkit.types import SandboxInfo, SandboxState

_lock = threading.Lock()
_ambient: "dict[tuple[int, str, int], _Ambient]" = {}
"""Providers by (pid, name, settings): a forked child must not use the connections of its parent."""


class _Ambient:
    def __init__(self, name: str) -> None:
        self.provider = _registry.load(name)
        _exit.register(self)

    def close(self) -> Operation[None]:
        """Release the provider's connections."""
        return Operation(self.provider.aclose())


def provider(name: str | None) -> Provider:
    """The process-wide provider called `name`, or the default one; a new one if its variables have changed."""
    name = _registry.default_name() if name is None else _registry.named(name)
    # A provider reads these variables when it is made; a hash, because some of them are secrets.
    begins = "KUBECONFIG", "SANDBOXKIT_STATE_DIR", f"{name.upper()}_", f"SANDBOXKIT_{name.upper()}_"
    settings = frozenset(item for item in os.environ.items() if item[0].startswith(begins))
    key = os.getpid(), name, hash(settings)
    with _lock:
        if key not in _ambient:
            _ambient[key] = _Ambient(name)
        return _ambient[key].provider


def listed(
    backend: Provider, tags: _tags.Tags | None, state: SandboxState | None
) -> Operation[list[SandboxInfo]]:
    """List the sandboxes that carry all of `tags` and are in `state`, None for any."""
    wanted = _tags.parse(tags)
    if state is not None:
        state = SandboxState(_arguments.one_of("state", state, list(SandboxState)))

    async def run() -> list[SandboxInfo]:
        return [info async for info in backend.list(wanted) if state in (None, info.state)]

    return Operation(run())


def _forget() -> None:
    global _lock
    _lock = threading.Lock()  # a thread of the parent may hold the old lock


os.register_at_fork(after_in_child=_forget)
