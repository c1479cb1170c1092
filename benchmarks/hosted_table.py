"""Makes the section of docs/benchmarks.md that compares hosted providers with the vendors' SDKs."""

from collections.abc import Iterator, Sequence

from benchmarks.hosted import EMULATORS, MEASURES, HostedError, Measure, Side, Traffic, measured

HOSTED = "hosted"
"""The key of this section for `python -m benchmarks.report --only`."""
ROUNDS, QUICK_ROUNDS = 10, 2
_SHOWN = ("first", "true", "megabyte", "listing")
_LATENCIES = (0.0, 0.05)
"""Round-trip times to the emulator in seconds."""
_HEAD = """\
## Hosted providers beside their vendors' SDKs

`hosted`: {rounds} rounds, in turns, against the emulators of `tests/emulators`, directly and 50 ms of round
trip away. "Baked" starts from an image with the agent in it (`sandboxkit bake`), on both sides. Requests are
those that the emulator counts; up and down are kB on the wire; each figure is the median of one repetition.
An emulator has no TLS, no scheduler and no images to pull: compare the sides, not the vendors. The targets
hold at 50 ms, since nobody is 0 ms away from a vendor.
"""
_COLUMNS = (
    "| | round trip | | ours, ms | SDK, ms | times the SDK | wanted | requests, ours and SDK "
    "| kB up | kB down |"
)


def section(*, quick: bool) -> str:
    """Measure all vendors and return the section; it has an error for a vendor that cannot be measured."""
    rounds = QUICK_ROUNDS if quick else ROUNDS
    rows: list[str] = []
    for vendor in EMULATORS:
        for latency in _LATENCIES:
            for baked in (False, True) if latency else (False,):
                shown = [
                    each
                    for each in MEASURES
                    if each.name in _SHOWN and (not baked or each.name == "first")
                ]
                try:
                    sides = measured(vendor, None, rounds, latency, shown, baked=baked)
                except HostedError as error:
                    rows.append(f"| {vendor} | | not measured: {error} | | | | | | | |")
                    continue
                rows += lines(vendor, latency, sides, shown, baked=baked)
    return "\n".join((_HEAD.format(rounds=rounds), _COLUMNS, "|---" * 10 + "|", *rows)) + "\n"


def lines(
    vendor: str, latency: float, sides: Sequence[Side], shown: Sequence[Measure], *, baked: bool
) -> Iterator[str]:
    """Yield a line of the table for each measure; `sides` are ours and the SDK's."""
    ours, sdk = sides[:2]
    for measure in shown:
        mine, theirs = ours.median(measure), sdk.median(measure)
        wanted_ratio = measure.baked if baked else measure.ratio
        limit = wanted_ratio if latency else None
        ratio = mine / theirs if mine and theirs else None
        wanted = ""
        if limit is not None:
            missed = ratio is None or ratio > limit
            wanted = f"at most {limit:g}{', **missed**' if missed else ''}"
        cells = (
            vendor,
            f"{1000 * latency:g} ms",
            f"{measure.says}{', baked' if baked else ''}",
            *(_figure(side, measure, median) for side, median in ((ours, mine), (sdk, theirs))),
            "" if ratio is None else f"{ratio:.2f}",
            wanted,
            *_traffic(ours.usual(measure), sdk.usual(measure)),
        )
        yield f"| {' | '.join(cells)} |"


def _figure(side: Side, measure: Measure, median: float | None) -> str:
    if median is None:
        return f"failed: {side.failures.get(measure.name, 'no repetition')}".replace("|", "/")
    return f"{1000 * median:.1f}"


def _traffic(ours: Traffic | None, sdk: Traffic | None) -> tuple[str, str, str]:
    if ours is None or sdk is None:
        return ("", "", "")
    return (
        f"{ours.requests}, {sdk.requests}",
        f"{ours.bytes_up / 1000:.1f}, {sdk.bytes_up / 1000:.1f}",
        f"{ours.bytes_down / 1000:.1f}, {sdk.bytes_down / 1000:.1f}",
    )
