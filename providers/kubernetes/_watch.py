"""One watch for all pods, or claims, of a provider: it keeps each one's newest state, also the final one."""

import asyncio
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import anyio

from sandboxkit.errors import ProviderUnavailableError, SandboxError, SandboxNotFoundError
from sandboxkit.providers.kubernetes._api import CORE, Api, Json
from sandboxkit.providers.kubernetes._errors import refusal_of

Pod = Mapping[str, Any]
"""A pod, or a claim, as the API server's JSON describes it."""

_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 5.0
_CATCH_UP = 0.5
"""How long (s) after a list the watch may take to report what happened since."""
_STILL_GOOD = frozenset({401, 403, 429, 502, 503})
"""Statuses after which a watch resumes from its version; after any other, pods are listed again."""


@dataclass(frozen=True, slots=True)
class PodStatus:
    """A pod's newest known state."""

    pod: Pod
    gone: bool = False
    """Whether the pod was deleted: `pod` is then its last state, which has an eviction's reason."""


_DELETION = ("deletionTimestamp", "deletionGracePeriodSeconds")
"""The metadata that says when a pod's deletion was requested; the watch keeps the first values."""


class PodWatch:
    """Watches pods from the first `follow` to `aclose`, through restarts of the API server.

    Only the states of followed pods are kept, although the watch gets all that match `selector`.
    """

    def __init__(
        self, api: Api, *, selector: str, resource: tuple[str, str] = ("pods", CORE)
    ) -> None:
        """`resource` is the kind of the objects, and the root of their paths."""
        self._api, self._selector, self._resource = api, selector, resource
        self._known: dict[str, PodStatus | None] = {}
        self._changed: dict[str, anyio.Event] = {}
        self._trouble: SandboxError | None = None
        """Why the watch is down; None while it works."""
        self._task: asyncio.Task[None] | None = None

    def follow(self, name: str, pod: Pod | None = None) -> None:
        """Keep this pod's states from now on; `pod` is its state, if known. Idempotent.

        Call this before the pod's creation without `pod`, and after it with the response. For an
        existing pod, pass its current state; otherwise its state is unknown until it changes.
        """
        if self._known.setdefault(name, None) is None and pod is not None:
            self._note(name, PodStatus(pod))
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())

    def forget(self, name: str) -> None:
        """Stop following a pod. Pending `until` calls for it raise SandboxNotFoundError."""
        self._known.pop(name, None)
        self._wake(name)

    def last(self, name: str) -> PodStatus | None:
        """Return the newest state, for a deleted pod its final one; None if none is known yet."""
        return self._known.get(name)

    def all(self) -> list[PodStatus]:
        """Return the newest state of each pod that is followed."""
        return [seen for seen in tuple(self._known.values()) if seen is not None]

    async def until(
        self, name: str, predicate: Callable[[PodStatus], bool], *, seconds: float
    ) -> PodStatus:
        """Follow the pod and wait until `predicate` is true of its state; return that state.

        Raises TimeoutError after `seconds`, or ProviderUnavailableError if the server is then
        unreachable. Raises at once AuthenticationError or ConfigurationError if watching is not
        permitted, and SandboxNotFoundError if the pod is gone or is forgotten.
        """
        self.follow(name)
        with anyio.move_on_after(seconds):
            while True:
                seen = self._known.get(name)
                if seen is not None and predicate(seen):
                    return seen
                if name not in self._known or (seen is not None and seen.gone):
                    raise SandboxNotFoundError(f"sandbox {name!r} was deleted", sandbox_id=name)
                trouble = self._trouble
                if trouble is not None and not trouble.retryable:
                    raise type(trouble)(str(trouble)) from trouble
                await self._changed.setdefault(name, anyio.Event()).wait()
        if self._trouble is not None:
            raise ProviderUnavailableError(str(self._trouble), sandbox_id=name) from self._trouble
        raise TimeoutError(f"no event of pod {name!r} within {seconds:g} s")

    async def aclose(self) -> None:
        """End the watch and forget all pods. Idempotent; the next `follow` starts a new watch."""
        task, self._task = self._task, None
        for name in list(self._known):
            self.forget(name)
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    async def _run(self) -> None:
        version, pause = "", _FIRST_PAUSE
        while True:
            began = anyio.current_time()
            try:
                path = await self._api.path(self._resource[0], root=self._resource[1])
                version = version or await self._list(path)
                query = {"labelSelector": self._selector}
                async with self._api.watch(path, version, params=query) as events:
                    self._trouble = None
                    async for event in events:
                        version = event["object"]["metadata"]["resourceVersion"]
                        self._take(event)
                        del event  # free its memory before the wait for the next one
            except SandboxError as error:
                refusal = refusal_of(error)
                if refusal is not None and refusal.status not in _STILL_GOOD:
                    version = ""
                self._fail(error)
            except (LookupError, TypeError, AttributeError) as error:
                version = ""
                reason = f"an event is malformed ({type(error).__name__}: {error})"
                self._fail(ProviderUnavailableError(reason))
            if anyio.current_time() - began > _LONGEST_PAUSE:
                pause = _FIRST_PAUSE
            # Jitter, so that not all clients reconnect at once when a server comes back.
            await anyio.sleep(pause * random.uniform(0.5, 1))
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _fail(self, error: SandboxError) -> None:
        self._trouble = error
        for name in list(self._changed):
            self._wake(name)

    async def _list(self, path: str) -> str:
        """Update the followed pods' states, and return the resource version to watch from.

        That version precedes the list, so the watch also reports changes during it, such as the
        final state of a pod that is deleted meanwhile.
        """
        query = {"labelSelector": self._selector}
        before = {name: seen for name, seen in self._known.items() if seen is not None}
        page = await self._api.call("GET", path, what="list pods", params={**query, "limit": 1})
        if self._known:
            async for pod in self._api.pages(path, what="list pods", params=query):
                name = pod["metadata"]["name"]
                before.pop(name, None)
                self._update(name, pod, gone=False)
            # Not at once: for pods that have just ended, the watch delivers the final state.
            asyncio.get_running_loop().call_later(_CATCH_UP, self._miss, before)
        return str(page["metadata"]["resourceVersion"])

    def _miss(self, before: Mapping[str, PodStatus]) -> None:
        """Mark as gone the pods that the list lacked and the watch has not reported since."""
        for name, seen in before.items():
            if self._known.get(name) is seen and not seen.gone:
                self._note(name, PodStatus(seen.pod, gone=True))

    # Any: the server's JSON is untyped.
    def _take(self, event: Json) -> None:
        if event["type"] in ("ADDED", "MODIFIED", "DELETED"):
            pod = event["object"]
            self._update(pod["metadata"]["name"], pod, gone=event["type"] == "DELETED")

    def _update(self, name: str, pod: Json, *, gone: bool) -> None:
        if name not in self._known:
            return
        seen = self._known[name]
        if seen is not None and not gone and (seen.gone or _is_older(pod, seen.pod)):
            return  # an old event, repeated after a list
        pod["metadata"].pop("managedFields", None)  # half of a pod's size
        if seen is not None and seen.pod["metadata"].get("uid") == pod["metadata"].get("uid"):
            # With the containers' end a newer kubelet deletes the pod once more, which changes these.
            pod["metadata"] |= {
                key: seen.pod["metadata"][key] for key in _DELETION if key in seen.pod["metadata"]
            }
        self._note(name, PodStatus(pod, gone))

    def _note(self, name: str, seen: PodStatus) -> None:
        self._known[name] = seen
        self._wake(name)

    def _wake(self, name: str) -> None:
        changed = self._changed.pop(name, None)
        if changed is not None:
            changed.set()


def _is_older(pod: Pod, than: Pod) -> bool:
    try:
        versions = (int(each["metadata"]["resourceVersion"]) for each in (pod, than))
        return next(versions) < next(versions)
    except ValueError:
        return False
