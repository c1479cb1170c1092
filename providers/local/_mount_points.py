"""Resolves the mount points of a sandbox within its image, because bubblewrap would follow links to the host.

While bubblewrap makes a sandbox's root, the host's files are still visible to it at /oldroot, and it looks a mount
point up by its path. A link of the image there would lead the mount to a folder of the host. So each path is
resolved here first, as a program in the sandbox would resolve it, and bubblewrap gets paths without links.
"""

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from sandboxkit.errors import SandboxStartError

_MOUNTED = {"--tmpfs": 1, "--proc": 1, "--dev": 1, "--mqueue": 1, "--bind": 2, "--ro-bind": 2}
_MADE = {**_MOUNTED, "--dir": 1, "--symlink": 2, "--file": 2}
"""Options of bubblewrap that make something, with the number of their values; the last is the path."""
_EMPTY = ("--tmpfs", "--dev", "--mqueue")
"""Options that hide what the image has below their path."""
_OURS = ("/proc", "/dev", "/.sandboxkit", "/.sandboxkit-root")
"""Folders that the provider and the agent rely on. No link of an image may stand for one, or lead into one."""
_MOST_LINKS = 40  # as in Linux


def made(args: Sequence[str]) -> list[str]:
    """Return the paths in the sandbox at which bubblewrap's options make something."""
    return [args[at] for _, at in _made(args) if args[at].startswith("/")]


def _made(args: Sequence[str]) -> Iterator[tuple[str, int]]:
    """Yield each option that makes something, with the index of its path."""
    for at, option in enumerate(args):
        if option in _MADE:
            yield option, at + _MADE[option]


class MountPoints:
    """The mount points of one sandbox, whose root has these layers of files, the upper one first."""

    def __init__(
        self, layers: Sequence[Path] = (), owner: str = "", *, follow: bool = False
    ) -> None:
        """`owner` says in errors whose files these are. Without `follow` every link is refused."""
        self._layers = [str(layer) for layer in layers]
        self._owner = owner
        self._follow = follow
        self._emptied: list[str] = []

    def placed(self, args: Sequence[str]) -> list[str]:
        """Return bubblewrap's options for the root, each with the path that its own means in the sandbox.

        The result has no path with a link. Raises SandboxStartError, which names the path, if a link leads to
        one of our own folders or into another mount, or if there is a file in the place of a folder.
        """
        placed = [*args]
        if not self._layers:
            return placed
        mounted: dict[str, bool] = {}
        for option, at in _made(args):
            path = args[at]
            placed[at] = target = self._target(
                path,
                file=option == "--file"
                or (option == "--ro-bind" and not os.path.isdir(args[at - 1])),
            )
            moved = target != path
            if moved and any(_within(each, own) for each in (path, target) for own in _OURS):
                raise self._refusal(path, f"a link to {target!r}")
            if not any(_within(target, each) for each in self._emptied):
                for other, other_moved in mounted.items():
                    overlap = _within(target, other) or _within(other, target)
                    if overlap and (moved or other_moved):
                        raise self._refusal(path, f"a link between this mount and {other!r}")
            if option in _MOUNTED:
                mounted[target] = moved
            if option in _EMPTY:
                self._emptied.append(target)
        return placed

    def is_folder(self, path: str) -> bool:
        """Return whether an absolute path is a folder, with folders alone above it and no link."""
        return all(stat.S_ISDIR(self._mode(str(each))) for each in (*Path(path).parents, path))

    def resolve(self, path: str) -> str:
        """Return an absolute path without links, whose end may be missing. Raises SandboxStartError."""
        todo, at, links = path.split("/")[::-1], "", 0
        while todo:
            part = todo.pop()
            if part == "..":
                if at and not self._mode(at):
                    raise self._refusal(path, f"a link through {at!r}, which is missing,")
                at = at.rpartition("/")[0]
            if part in ("", ".", ".."):
                continue
            each = f"{at}/{part}"
            mode = self._mode(each)
            if stat.S_ISLNK(mode):
                links += 1
                if not self._follow or links > _MOST_LINKS:
                    raise self._refusal(path, f"a link at {each!r}")
                target = self._link(each)
                at = "" if target.startswith("/") else at
                todo += target.split("/")[::-1]
            elif mode and todo and not stat.S_ISDIR(mode):
                raise self._refusal(path, f"something else at {each!r}")
            else:
                at = each
        return at or "/"

    def _target(self, path: str, *, file: bool) -> str:
        target = self.resolve(path)
        mode = self._mode(target)
        if mode and not (stat.S_ISDIR(mode) or (file and stat.S_ISREG(mode))):
            raise self._refusal(path, f"something else at {target!r}")
        return target

    def _refusal(self, path: str, found: str) -> SandboxStartError:
        return SandboxStartError(
            f"{self._owner} has {found}, where the sandbox needs the folder {path!r}: leave out the mount "
            "there, or have a folder in its place"
        )

    def _mode(self, path: str) -> int:
        """Return the mode of what there is at a path with folders above it; 0 if nothing."""
        if any(_within(path, each) and path != each for each in self._emptied):
            return 0
        for layer in self._layers:
            try:
                found = os.lstat(layer + path)
            except (FileNotFoundError, NotADirectoryError):
                if self._hides(layer, path):
                    return 0
            except OSError as error:
                raise self._refusal(path, f"what cannot be read ({error.strerror})") from error
            else:
                return 0 if _is_deletion(found) else found.st_mode
        return 0

    def _hides(self, layer: str, path: str) -> bool:
        """Return whether lower layers' files at a path are hidden, because this layer has no folder above it."""
        for above in Path(path).parents:
            with suppress(FileNotFoundError, NotADirectoryError):
                return not stat.S_ISDIR(os.lstat(f"{layer}{above}").st_mode)
        return False

    def _link(self, path: str) -> str:
        for layer in self._layers:
            with suppress(FileNotFoundError, NotADirectoryError):
                return os.readlink(layer + path)
        raise self._refusal(path, "a link that has changed meanwhile")


def _is_deletion(found: os.stat_result) -> bool:
    """Return whether this is the mark of an overlay for a file that an upper layer has deleted."""
    return stat.S_ISCHR(found.st_mode) and found.st_rdev == 0


def _within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")
