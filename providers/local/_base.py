"""The files of a snapshot as the lower layer below what a new sandbox writes."""

import os
import stat
from dataclasses import dataclass
from pathlib import Path

from sandboxkit.errors import ConfigurationError
from sandboxkit.providers.local._id_map import mount_tmpfs
from sandboxkit.providers.local._image import LocalImage


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
                f"snapshots rm {self.id})"
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

    def _mode(self, path: str) -> int:
        """Return the mode of what the snapshot has at a path whose parents are folders; 0 if nothing."""
        try:
            mode = os.lstat(f"{self.root}{path}").st_mode
            return 0 if stat.S_ISCHR(mode) else mode  # deleted
        except (FileNotFoundError, NotADirectoryError):
            return 0

    def _place(self, upper: str, folder: str) -> str:
        return f"{upper}/{self.folders.index(folder)}"
