"""Converts internal errors of the hosted providers to public ones."""

import functools
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing, contextmanager
from typing import Any, TypeVar

from sandboxkit.provider import Provider
from sandboxkit.providers._hosted.ambiguous import AmbiguousError, as_unavailable

__all__ = ["converted", "public"]

_P = TypeVar("_P", bound=Provider)


def public(provider: type[_P]) -> type[_P]:
    """Class decorator: public methods raise ProviderUnavailableError instead of AmbiguousError.

    This is safe because calls that must not be repeated use the agent, see `_agent.provider`.
    """
    for name, method in list(vars(provider).items()):
        if name.startswith("_"):
            continue
        if inspect.iscoroutinefunction(method):
            setattr(provider, name, _call(method))
        elif inspect.isasyncgenfunction(method):
            setattr(provider, name, _listing(method))
    return provider


# Any: methods of every signature.
def _call(method: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    @functools.wraps(method)
    async def call(*arguments: Any, **options: Any) -> Any:
        with converted():
            return await method(*arguments, **options)

    return call


def _listing(method: Callable[..., Any]) -> Callable[..., AsyncIterator[Any]]:
    @functools.wraps(method)
    async def listing(*arguments: Any, **options: Any) -> AsyncIterator[Any]:
        with converted():
            async with aclosing(method(*arguments, **options)) as items:
                async for item in items:
                    yield item

    return listing


@contextmanager
def converted() -> Iterator[None]:
    """Context that raises ProviderUnavailableError instead of AmbiguousError."""
    try:
        yield
    except AmbiguousError as error:
        raise as_unavailable(error) from error
