"""What sandboxes hold of this machine's memory: the proportional share of each of their processes."""

from pathlib import Path

_SHIM = "containerd-shim"


def proportional(pid: int) -> float:
    """MB that a process holds, where a page of several counts in parts; 0 once it is gone."""
    try:
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0.0
    return (
        sum(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:")) / 1e3
    )


def processes() -> dict[int, tuple[int, str]]:
    """The parent and the name of each process."""
    found: dict[int, tuple[int, str]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, _, rest = path.read_text().partition("(")[2].rpartition(")")
        except OSError:
            continue
        found[int(path.parent.name)] = (int(rest.split()[1]), name)
    return found


def below(roots: set[int], table: dict[int, tuple[int, str]]) -> set[int]:
    """All descendants of `roots`, without them."""
    found: set[int] = set()
    reached = roots
    while reached:
        reached = {pid for pid, (parent, _) in table.items() if parent in reached} - found
        found |= reached
    return found


def shims() -> set[int]:
    """The processes that hold containers."""
    return {pid for pid, (_, name) in processes().items() if name.startswith(_SHIM)}


def held(roots: set[int], client: int) -> float:
    """MB of the processes below `client`, and of `roots` with all below them."""
    table = processes()
    return sum(map(proportional, below({client}, table) | roots | below(roots, table)))
