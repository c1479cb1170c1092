"""Makes a session for a grader, with a warm pool of the sandboxes that run submissions."""

import os
from typing import Any

from sandboxkit import Session
from sandboxkit.integrations.rewards._limits import Limits
from sandboxkit.integrations.rewards._run import run_options
from sandboxkit.integrations.rewards._verdict import Grader
from sandboxkit.provider import Provider

_EACH_PROCESSOR = 2
"""Sandboxes per CPU: while one runs a job, another is reset or its result is compared."""


def grading_session(
    grader: Grader,
    provider: str | Provider | None = None,
    *,
    max_concurrency: int | None = None,
    pool: int | None = None,
    **options: Any,  # SandboxSpec's, as Session takes them
) -> Session:
    """Return a session with a warm pool of the sandboxes that the grader's `limits` describe.

    The default size of `pool` is `max_concurrency`, or else two sandboxes per CPU of this machine;
    0 means no pool. The default of `max_concurrency` is the size of the pool, so that the session
    creates no further sandboxes. There is no pool by default if `limits.reuse` is "never", if the
    grader has no `limits`, or if the provider cannot reset a sandbox. Raises ConfigurationError for
    invalid options.
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
    forks_python = getattr(grader, "forks_python", True)
    options.update(run_options(limits, resets=True, forks_python=forks_python))
    return Session(provider, max_concurrency=max_concurrency or pool, pool=pool, **options)


def _can_reset(provider: str | Provider | None) -> bool:
    return not isinstance(provider, Provider) or type(provider).reset is not Provider.reset
