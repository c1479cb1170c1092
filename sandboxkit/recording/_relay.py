"""Relay: a Provider whose simple calls all go through one method, for recordings and replays."""

import functools
import inspect
from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

from sandboxkit import _tags
from sandboxkit.provider import Provider


class Relay(Provider):
    """A Provider that passes each simple call to `call`, with its result type, name and arguments.

    It has no `reset`: which job gets which sandbox of a pool depends on timing.
    """

    # Any: arguments and results of all calls.
    @abstractmethod
    async def call(
        self, returns: Any, name: str, sandbox_id: str | None, /, **arguments: Any
    ) -> Any:
        """Make the call `name` with these arguments, and return a value of the type `returns`."""


# Any: methods of any signature.
def _relayed(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method that passes its arguments, by their names in the contract, to `Relay.call`."""
    signature = inspect.signature(method)

    @functools.wraps(method)
    async def relayed(self: Relay, *given: Any, **named: Any) -> Any:
        bound = signature.bind(self, *given, **named)
        bound.apply_defaults()
        arguments = {name: value for name, value in bound.arguments.items() if name != "self"}
        box = arguments.pop("sandbox_id", None)
        return await self.call(signature.return_annotation, method.__name__, box, **arguments)

    return relayed


for _method in (
    Provider.get,
    Provider.ready,
    Provider.workdir,
    Provider.read_file,
    Provider.write_file,
    Provider.list_dir,
    Provider.stat,
    Provider.remove,
    Provider.renew,
    Provider.logs,
    Provider.wait,
    Provider.usage,
    Provider.start_interpreter,
    Provider.check_ports,
    Provider.public_url,
    Provider.take_snapshot,
    Provider.delete_snapshot,
    Provider.pause,
    Provider.resume,
    Provider.remove_unused_datasets,
    Provider.list_volumes,
    Provider.remove_volume,
    Provider.diagnose,
):
    setattr(Relay, _method.__name__, _relayed(_method))


# Any: arguments of all calls.
def compared(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments by which a replay compares calls: without times and sandboxkit's own tags."""
    kept = {name: value for name, value in arguments.items() if name != "expires"}
    if "tags" in kept:
        kept["tags"] = _tags.public(kept["tags"])
    return kept
