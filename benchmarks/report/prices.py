"""What 10,000 jobs cost on each hosted vendor, from public list prices: an estimate, nothing measured.

python -m benchmarks.report.prices [--jobs N] [--sandboxes N] [--vcpus N] [--memory-gib N] ...
"""

import argparse
import sys
from dataclasses import dataclass, fields

READ = "2026-11-22"
SOURCES = (
    "the documentation of E2B (billing, rate limits), Daytona (rate limits) and Modal (resources of "
    "sandboxes), and public pages that quote the price lists of Daytona and Modal"
)
"""Where the prices and limits were read, and when."""


@dataclass(frozen=True, slots=True)
class Vendor:
    """List prices in US dollars, and how many sandboxes may be created in a second."""

    name: str
    vcpu_second: float
    gib_second: float
    creations_per_second: float | None
    says: str


VENDORS = (
    Vendor("E2B", 0.000014, 0.0000045, 5, "Pro plan; its 150 $ a month are not in it"),
    Vendor("Daytona", 0.0504 / 3600, 0.0162 / 3600, 10, "600 creations a minute; disk not in it"),
    Vendor(
        "Modal",
        0.00003942 / 2,
        0.00000672,
        None,
        "sandbox rate, a core is 2 vCPUs; no rate of creation published",
    ),
)


@dataclass(frozen=True, slots=True)
class Assumptions:
    """What the estimate stands on; none of it was measured at a vendor."""

    jobs: int = 10_000
    sandboxes: int = 10
    """The number of jobs that run at a time."""
    vcpus: float = 1
    memory_gib: float = 1
    start: float = 1.0
    """Seconds that a sandbox is billed for before its first job and after its last."""
    round_trip: float = 0.1
    """Seconds of a request to a sandbox."""
    python: float = 0.1
    """Seconds of a job that starts Python."""
    forked: float = 0.01
    """Seconds of the same job forked from an interpreter that runs."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """One way to do all jobs on one vendor."""

    created: int
    seconds: float
    dollars: float


def fresh(vendor: Vendor, given: Assumptions) -> Estimate:
    """A sandbox for each job."""
    each = given.start + given.round_trip + given.python
    seconds = given.jobs * each / given.sandboxes
    if vendor.creations_per_second is not None:
        seconds = max(seconds, given.jobs / vendor.creations_per_second)
    return Estimate(given.jobs, seconds, given.jobs * each * _rate(vendor, given))


def reused(vendor: Vendor, given: Assumptions) -> Estimate:
    """Sandboxes that are kept: for each job a request that runs it, and one that resets."""
    each = 2 * given.round_trip + given.forked
    seconds = given.start + given.jobs * each / given.sandboxes
    if vendor.creations_per_second is not None:
        seconds += given.sandboxes / vendor.creations_per_second
    return Estimate(given.sandboxes, seconds, given.sandboxes * seconds * _rate(vendor, given))


def _rate(vendor: Vendor, given: Assumptions) -> float:
    return vendor.vcpu_second * given.vcpus + vendor.gib_second * given.memory_gib


def table(given: Assumptions) -> str:
    """Both ways on all vendors, as a table with its assumptions."""
    lines = [
        "| vendor | sandboxes created: a job each; kept | hours | US dollars | less by |",
        "|---|---|---|---|---|",
    ]
    for vendor in VENDORS:
        one, kept = fresh(vendor, given), reused(vendor, given)
        lines.append(
            f"| {vendor.name} ({vendor.says}) | {one.created:,}; {kept.created} "
            f"| {one.seconds / 3600:.2f}; {kept.seconds / 3600:.2f} "
            f"| {one.dollars:.3f}; {kept.dollars:.3f} | {one.dollars / kept.dollars:.1f} times |"
        )
    assumed = ", ".join(
        f"`{f.name.replace('_', '-')}` {getattr(given, f.name):g}" for f in fields(given)
    )
    return "\n".join((*lines, "", f"Assumed: {assumed}. Read on {READ}: {SOURCES}."))


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    for each in fields(Assumptions):
        kind = (
            int if isinstance(each.default, int) and each.name in ("jobs", "sandboxes") else float
        )
        parser.add_argument(f"--{each.name.replace('_', '-')}", type=kind, default=each.default)
    print(table(Assumptions(**vars(parser.parse_args()))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
