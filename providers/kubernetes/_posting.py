"""Creates an object whose name the client chose: a repeated request makes no second one."""

import time
from collections.abc import Awaitable, Callable
from typing import Any

from sandboxkit.errors import ProviderUnavailableError, SandboxError
from sandboxkit.providers._hosted.ambiguous import AmbiguousError
from sandboxkit.providers.kubernetes._api import Api
from sandboxkit.providers.kubernetes._errors import refusal_of

_AGAIN_WITHIN = 2.0
"""A creation is retried only if its call failed within these seconds, so not after a time-out."""

# Any: manifests are JSON.
Json = dict[str, Any]


async def post_once(api: Api, path: str, body: Json, find: Callable[[], Awaitable[Json]]) -> Json:
    """Create an object for a sandbox; `find` returns the one with its name, if that exists already.

    Raises AmbiguousError if the object may or may not have been created.
    """
    name = body["metadata"]["name"]
    began = time.monotonic()
    asked = False
    while True:
        try:
            made: Json = await api.call(
                "POST", path, body, what="create a sandbox", sandbox_id=name
            )
            return made
        except SandboxError as error:
            refusal = refusal_of(error)
            if asked and refusal is not None and refusal.reason == "AlreadyExists":
                return await find()
            if refusal is not None and refusal.status < 500:
                raise
            if not isinstance(error, ProviderUnavailableError):
                raise
            if asked or time.monotonic() - began > _AGAIN_WITHIN:
                raise AmbiguousError(str(error), sandbox_id=name) from error
            asked = True
