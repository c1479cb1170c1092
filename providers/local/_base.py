"""The files of a snapshot as the lower layer below what a new sandbox writes."""

import os
import stat
from dataclasses import dataclass
from pathlib import Path

from sandboxkit.errors import ConfigurationError, SandboxStartError
from sandboxkit.providers.local._id_map import mount_tmpfs
from sandboxkit.providers.local._image import LocalImage

__all__ = ["Base"]

_OPTIONS = {
    **dict.fromkeys(("--dir", "--tmpfs", "--proc", "--dev", "--mqueue"), 1),
    **dict.fromkeys(("--bind", "--ro-bind", "--symlink", "--file"), 2),
}
"""Options of bubblewrap that make something, with the number of their values; the last is the path."""


@dataclass(frozen=True, slots=True)
class Base:
    """A snapshot from which a sandbox starts."""

    id: str
    root: Path
    """The stored files, by their paths in the sandbox."""
    store: Path
    """The folder of all snapshots."""
    folders: tuple[str, ...]
    """The stored folders; ("/",) for the whole root."""
    image: str | None = None
    """The image on which the stored files lie; None for the host's own programs."""
    image_version: str = ""

    def check_image(self, image: LocalImage) -> None:
        """Raise ConfigurationError if the image is not that on which the snapshot was taken."""
        if image.version() != self.image_version:
            raise ConfigurationError(
                f"image={self.image!r} has changed since snapshot {self.id!r} was taken of a sandbox with it: "
                "take the snapshot again; an image of a recipe is built again once it is removed (sandboxkit "
                f"snapshots rm {self.id})",
                provider="local",
            )

    def overlay(self, upper: str, folder: str) -> list[str]:
        """Return bubblewrap's options for a stored folder of the sandbox, with its upper layer in `upper`."""
        place = self._place(upper, folder)
        lower = f"{self.root}{folder}".rstrip("/")
        return ["--overlay-src", lower, "--overlay", f"{place}/upper", f"{place}/work", folder]

    def outer(self, upper: str, disk_mb: int, *, detach: bool) -> list[str]:
        """Return the options of an outer bubblewrap that sees the host, with a sized tmpfs at `upper`."""
        args = ["--unshare-user", "--dev-bind", "/", "/"]
        if not detach:
            args.append("--die-with-parent")
        args += ["--size", str(disk_mb << 20), "--perms", "0755", "--tmpfs", upper]
        for folder in self.folders:
            place = self._place(upper, folder)
            mode = stat.S_IMODE(os.lstat(f"{self.root}{folder}").st_mode)
            args += ["--perms", "0755", "--dir", place, "--perms", "0755", "--dir", f"{place}/work"]
            args += ["--perms", f"{mode:04o}", "--dir", f"{place}/upper"]
        return args

    def prepare(self, upper: str, disk_mb: int, owner: int) -> None:
        """Make a sized tmpfs at `upper` for the layers of `owner`, as root in a namespace for it.

        It spares the outer bubblewrap. Raises OSError.
        """
        mount_tmpfs(upper, disk_mb << 20, owner)
        for folder in self.folders:
            place = self._place(upper, folder)
            mode = stat.S_IMODE(os.lstat(f"{self.root}{folder}").st_mode)
            for path, permissions in (
                (place, 0o755),
                (f"{place}/work", 0o755),
                (f"{place}/upper", mode),
            ):
                os.mkdir(path)
                os.chown(path, owner, owner)
                os.chmod(path, permissions)

    def has_file(self, path: str) -> bool:
        """Return whether the snapshot has a regular file at an absolute path."""
        return stat.S_ISREG(self._mode(path))

    def folder_mode(self, path: str) -> int | None:
        """Return the permissions of a folder at an absolute path; None if the snapshot has none there."""
        modes = [self._mode(str(each)) for each in (*reversed(Path(path).parents), path)]
        return stat.S_IMODE(modes[-1]) if all(map(stat.S_ISDIR, modes)) else None

    def check(self, args: list[str]) -> None:
        """Refuse the start if bubblewrap's options would make something behind a link of the snapshot.

        Raises SandboxStartError, which names the link.
        """
        for path in made(args):
            parts = path.strip("/").split("/")
            for count in range(1, len(parts) + 1):
                above = "/" + "/".join(parts[:count])
                mode = self._mode(above)
                last = count == len(parts)
                if mode and not (stat.S_ISDIR(mode) or (last and stat.S_ISREG(mode))):
                    raise SandboxStartError(
                        f"snapshot {self.id!r} has something else at {above!r} where the sandbox needs a "
                        "folder: leave out the mount there, or take the snapshot without it",
                        provider="local",
                    )
                if not stat.S_ISDIR(mode):
                    break

    def _mode(self, path: str) -> int:
        """Return the mode of what the snapshot has at a path whose parents are folders; 0 if nothing."""
        try:
            mode = os.lstat(f"{self.root}{path}").st_mode
            return 0 if stat.S_ISCHR(mode) else mode  # deleted
        except (FileNotFoundError, NotADirectoryError):
            return 0

    def _place(self, upper: str, folder: str) -> str:
        return f"{upper}/{self.folders.index(folder)}"


def made(args: list[str]) -> list[str]:
    """Return the paths in the sandbox at which bubblewrap's options make something."""
    found = []
    for at, option in enumerate(args):
        if option in _OPTIONS:
            path = args[at + _OPTIONS[option]]
            if path.startswith("/"):
                found.append(path)
    return found
