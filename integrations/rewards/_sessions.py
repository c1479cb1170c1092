"""A session for a grader, with a pool of the sandboxes in which it runs submissions."""

import os
from typing import Any

from sandboxkit import Session
from sandboxkit.integrations.rewards._isolated import Limits, run_options
from sandboxkit.integrations.rewards._verdict import Grader
from sandboxkit.provider import Provider

_EACH_PROCESSOR = 2
"""Sandboxes: one has its job, and another is reset, or its answer is compared."""


def grading_session(
    grader: Grader,
    provider: str | Provider | None = None,
    *,
    max_concurrency: int | None = None,
    pool: int | None = None,
    **options: Any,  # SandboxSpec's, as Session takes them
) -> Session:
    """A session whose pool is filled with the sandboxes that the grader's `limits` describe.

    `pool` None is as many as `max_concurrency`, or else two for each processor of this machine; 0 is
    none. With a pool `max_concurrency` is its size by default, so that no more are ever created than
    it has. There is none by default for limits with `reuse="never"`, for a grader without `limits`
    and for a provider that cannot reset a sandbox.
    """
    limits = getattr(grader, "limits", None)
    if not isinstance(limits, Limits) or limits.reuse == "never":
        return Session(provider, max_concurrency=max_concurrency, pool=pool or None, **options)
    if pool is None and limits.reuse is None and not _can_reset(provider):
        pool = 0
    if pool is None:
        pool = max_concurrency or _EACH_PROCESSOR * (os.cpu_count() or 1)
    if pool == 0:
        return Session(provider, max_concurrency=max_concurrency, **options)
    options.update(run_options(limits, resets=True))
    return Session(provider, max_concurrency=max_concurrency or pool, pool=pool, **options)


def _can_reset(provider: str | Provider | None) -> bool:
    return not isinstance(provider, Provider) or type(provider).reset is not Provider.reset
