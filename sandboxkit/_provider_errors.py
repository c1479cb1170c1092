"""Completes the errors of a provider's methods: their fields `provider` and `sandbox_id`."""

import functools
import inspect
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import Any

from sandboxkit.errors import SandboxError


# Any: methods of any signature.
def completing_errors(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return the method of a provider, whose errors then say which provider and which sandbox it was."""
    of_sandbox = [*inspect.signature(method).parameters][1:2] == ["sandbox_id"]

    def complete(error: SandboxError, provider: Any, args: tuple[Any, ...]) -> None:
        error.provider = error.provider or provider.name
        if of_sandbox and args:
            error.sandbox_id = error.sandbox_id or args[0]

    async def call(self: Any, *args: Any, **options: Any) -> Any:
        try:
            return await method(self, *args, **options)
        except SandboxError as error:
            complete(error, self, args)
            raise

    async def items(self: Any, *args: Any, **options: Any) -> AsyncIterator[Any]:
        try:
            async with aclosing(method(self, *args, **options)) as found:
                async for item in found:
                    yield item
        except SandboxError as error:
            complete(error, self, args)
            raise

    def plain(self: Any, *args: Any, **options: Any) -> Any:
        try:
            return method(self, *args, **options)
        except SandboxError as error:
            complete(error, self, args)
            raise

    if inspect.isasyncgenfunction(method):
        return functools.wraps(method)(items)
    return functools.wraps(method)(call if inspect.iscoroutinefunction(method) else plain)
