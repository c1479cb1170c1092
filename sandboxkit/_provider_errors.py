"""Completes the errors of a provider's methods, by the hook `Provider._completed`."""

import functools
import inspect
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import Any, NoReturn

from sandboxkit.errors import SandboxError


# Any: methods of any signature.
def completing_errors(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return the method of a provider, which then raises what `_completed` makes of its errors."""
    of_sandbox = [*inspect.signature(method).parameters][1:2] == ["sandbox_id"]

    def fail(error: SandboxError, provider: Any, args: tuple[Any, ...]) -> NoReturn:
        completed = provider._completed(error, args[0] if of_sandbox and args else None)
        if completed is error:
            raise error
        raise completed from error

    async def call(self: Any, *args: Any, **options: Any) -> Any:
        try:
            return await method(self, *args, **options)
        except SandboxError as error:
            fail(error, self, args)

    async def items(self: Any, *args: Any, **options: Any) -> AsyncIterator[Any]:
        try:
            async with aclosing(method(self, *args, **options)) as found:
                async for item in found:
                    yield item
        except SandboxError as error:
            fail(error, self, args)

    def plain(self: Any, *args: Any, **options: Any) -> Any:
        try:
            return method(self, *args, **options)
        except SandboxError as error:  # from here, so that the traceback fits on a screen
            raise self._completed(error, None).with_traceback(None) from error.__cause__

    if inspect.isasyncgenfunction(method):
        return functools.wraps(method)(items)
    return functools.wraps(method)(call if inspect.iscoroutinefunction(method) else plain)
