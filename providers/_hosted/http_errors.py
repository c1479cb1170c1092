"""Reads the delay that an HTTP error response requests."""

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the delay (s) in the Retry-After headers, or None.

    A date is compared with the server's own clock. Some rate limiters append their name, as in
    `retry-after-sandbox-create`; the longest delay is returned. `headers` has lower-case names.
    """
    delays = (
        _seconds(text.strip(), headers)
        for name, text in headers.items()
        if name == "retry-after" or name.startswith("retry-after-")
    )
    return max((seconds for seconds in delays if seconds is not None), default=None)


def _seconds(text: str, headers: Mapping[str, str]) -> float | None:
    try:
        seconds = float(text)
        return max(0.0, seconds) if math.isfinite(seconds) else None
    except ValueError:
        pass
    until = _moment(text)
    if until is None:
        return None
    now = _moment(headers.get("date", "")) or datetime.now(UTC)
    return max(0.0, (until - now).total_seconds())


def _moment(text: str) -> datetime | None:
    try:
        moment = parsedate_to_datetime(text)
    except ValueError:
        return None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
