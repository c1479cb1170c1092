"""Where a provider could leave something of a round, looked at without the provider's help.

What still runs begins with "live": it has to end by itself after a client's death. The remains of what has
ended may wait for `sandboxkit cleanup`, or for the next client.
"""

import re
import subprocess
from pathlib import Path

from sandboxkit import Session

_CGROUPS = Path("/sys/fs/cgroup")
_ID = re.compile(r"local-[0-9a-f]{16}")


class Places:
    """Where nobody says where to look: what the provider itself lists."""

    def __init__(self, tag: str, folder: Path) -> None:
        self.tag, self.folder = tag, folder

    def watch(self) -> None:
        """Called again and again while the client runs."""

    def left(self) -> set[str]:
        """Describe what is there now of this round's sandboxes."""
        with Session() as session:
            return {info.id for info in session.list(f"chaos:{self.tag}").result(60)}


class Local(Places):
    """Folders of state, control groups and mounts. A round has a folder for state of its own."""

    seen: frozenset[str] = frozenset()

    def watch(self) -> None:
        """Learn the sandboxes' ids: the folder of one is there before anything else of it."""
        self.seen |= {found[0] for path in self._folders() if (found := _ID.search(path.name))}

    def left(self) -> set[str]:
        self.watch()
        found = {f"state {path.name}" for path in self._folders()}
        for pattern in ("sandboxkit/*", "*/sandboxkit/*"):
            for path in _CGROUPS.glob(pattern):
                known = _ID.search(path.name)
                if known is not None and known[0] in self.seen:
                    found.add(f"cgroup {path}")
        mounts = Path("/proc/self/mountinfo").read_text().splitlines()
        return found | {f"mount {line}" for line in mounts if str(self.folder) in line}

    def _folders(self) -> list[Path]:
        return [path for path in (self.folder / "state").glob("*") if path.is_dir()]


class Docker(Places):
    """Containers, in whatever state."""

    def left(self) -> set[str]:
        command = ["docker", "ps", "--all", "--filter", f"label=chaos={self.tag}", "--format"]
        done = subprocess.run(
            [*command, "{{.Names}} {{.Status}}"], capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
        lines = done.stdout.splitlines()
        return {f"{'live ' if ' Up' in line else ''}container {line}" for line in lines}


class Haunted(Places):
    """A place where there is always something."""

    def left(self) -> set[str]:
        return {"a ghost"}
