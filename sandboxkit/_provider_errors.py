"""Completes the errors of a provider's methods: their fields `provider` and `sandbox_id`."""

import functools
import inspect
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, aclosing
from typing import Any


# Any: methods of any signature.
def completing_errors(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return the method of a provider, which then runs in the context `Provider._completed`."""
    of_sandbox = [*inspect.signature(method).parameters][1:2] == ["sandbox_id"]

    def completed(provider: Any, args: tuple[Any, ...]) -> AbstractContextManager[None]:
        context: AbstractContextManager[None] = provider._completed(
            args[0] if of_sandbox and args else None
        )
        return context

    async def call(self: Any, *args: Any, **options: Any) -> Any:
        with completed(self, args):
            return await method(self, *args, **options)

    async def items(self: Any, *args: Any, **options: Any) -> AsyncIterator[Any]:
        with completed(self, args):
            async with aclosing(method(self, *args, **options)) as found:
                async for item in found:
                    yield item

    def plain(self: Any, *args: Any, **options: Any) -> Any:
        with completed(self, args):
            return method(self, *args, **options)

    if inspect.isasyncgenfunction(method):
        return functools.wraps(method)(items)
    return functools.wraps(method)(call if inspect.iscoroutinefunction(method) else plain)
