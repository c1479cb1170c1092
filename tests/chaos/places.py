"""Where the local, the docker and the kubernetes provider could leave something of a round."""

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.kubernetes.cluster import view

_CGROUPS = Path("/sys/fs/cgroup")
_ID = re.compile(r"local-[0-9a-f]{16}")


class Local:
    """Folders of state, control groups and mounts. A round has a folder for state of its own."""

    def __init__(self, tag: str, folder: Path) -> None:
        self._state = folder / "state"
        self._folder = str(folder)
        self._seen: set[str] = set()

    def watch(self) -> None:
        """Learn the sandboxes' ids: the folder of one is there before anything else of it."""
        self._seen |= {found[0] for path in self._folders() if (found := _ID.search(path.name))}

    def left(self) -> set[str]:
        self.watch()
        found = {f"state {path.name}" for path in self._folders()}
        for pattern in ("sandboxkit/*", "*/sandboxkit/*"):
            for path in _CGROUPS.glob(pattern):
                known = _ID.search(path.name)
                if known is not None and known[0] in self._seen:
                    found.add(f"cgroup {path}")
        mounts = Path("/proc/self/mountinfo").read_text().splitlines()
        return found | {f"mount {line}" for line in mounts if self._folder in line}

    def _folders(self) -> list[Path]:
        return [path for path in self._state.glob("*") if path.is_dir()]


class Docker:
    """Containers, in whatever state."""

    def __init__(self, tag: str, folder: Path) -> None:
        self._label = f"label=chaos={tag}"

    def watch(self) -> None:
        """Nothing to learn: the label says it all."""

    def left(self) -> set[str]:
        command = ["docker", "ps", "--all", "--filter", self._label, "--format"]
        done = subprocess.run(
            [*command, "{{.Names}} {{.Status}}"], capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
        lines = done.stdout.splitlines()
        return {f"{'live ' if ' Up' in line else ''}container {line}" for line in lines}


class Kubernetes:
    """Pods, in whatever state; not those that were deleted and of which nothing runs any more."""

    def __init__(self, tag: str, folder: Path) -> None:
        self._tag = tag
        self._cluster = view(Path(os.environ["KUBECONFIG"]))
        self._namespace = os.environ["SANDBOXKIT_KUBERNETES_NAMESPACE"]

    def watch(self) -> None:
        """Nothing to learn: the annotation says it all."""

    def left(self) -> set[str]:
        return set(self._pods())

    def _pods(self) -> Iterator[str]:
        for pod in self._cluster.pods(self._namespace, "sandboxkit.dev/sandbox=1"):
            metadata, status = pod["metadata"], pod["status"]
            if json.loads(metadata["annotations"]["sandboxkit.dev/tags"])["chaos"] != self._tag:
                continue
            states = [each["state"] for each in status.get("containerStatuses", ())]
            over = status.get("phase") in ("Succeeded", "Failed") or (
                states != [] and all("terminated" in state for state in states)
            )
            if not (over and "deletionTimestamp" in metadata):
                yield f"{'' if over else 'live '}pod {metadata['name']} {status.get('phase')}"
