"""Relay: a Provider whose simple calls, and those of its boxes, all go through one method, for recordings and replays."""

import functools
import inspect
from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

from sandboxkit import _tags
from sandboxkit.provider import Box, Provider


class Relay(Provider):
    """A Provider that passes each simple call, its own or a box's, to `call`."""

    # Any: arguments and results of all calls.
    @abstractmethod
    async def call(
        self, returns: Any, name: str, box: "RelayBox | None", /, **arguments: Any
    ) -> Any:
        """Make the call `name`, of a box or of the provider, and return a value of the type `returns`."""


class RelayBox(Box):
    """A box that passes each simple call to its provider's `call`.

    It has no `reset`: which job gets which sandbox of a pool depends on timing.
    """

    def __init__(self, relay: Relay, sandbox_id: str) -> None:
        super().__init__(relay, sandbox_id)
        self.relay = relay


# Any: methods of any signature.
def _relayed(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method that passes its arguments, by their names in the contract, to `Relay.call`."""
    signature = inspect.signature(method)

    @functools.wraps(method)
    async def relayed(self: Relay | RelayBox, *given: Any, **named: Any) -> Any:
        bound = signature.bind(self, *given, **named)
        bound.apply_defaults()
        arguments = {name: value for name, value in bound.arguments.items() if name != "self"}
        relay, box = (self.relay, self) if isinstance(self, RelayBox) else (self, None)
        return await relay.call(signature.return_annotation, method.__name__, box, **arguments)

    return relayed


_BOX = "info ready workdir read_file write_file list_dir stat remove renew logs wait usage"
_BOX += " start_interpreter check_ports public_url take_snapshot pause resume"
_PROVIDER = "delete_snapshot remove_unused_datasets list_volumes remove_volume diagnose"
for _name in _BOX.split():
    setattr(RelayBox, _name, _relayed(getattr(Box, _name)))
for _name in _PROVIDER.split():
    setattr(Relay, _name, _relayed(getattr(Provider, _name)))


# Any: arguments of all calls.
def compared(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments by which a replay compares calls: without times and sandboxkit's own tags."""
    kept = dict(arguments)
    if request := kept.pop("request", None):  # of a snapshot
        kept |= {"kind": request.kind, "name": request.name, "tags": _tags.public(request.tags)}
    return kept
