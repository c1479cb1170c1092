"""Reads a task's folder, which somebody else may have made, and checks what it asks of the caller's machine."""

import tomllib
from collections.abc import Collection
from pathlib import Path
from typing import Any

from sandboxkit import ConfigurationError, Egress, Image
from sandboxkit.datasets import Folder
from sandboxkit.types import Dockerfile, Network

_MOST_SETTINGS = 32 << 10
"""Bytes of a `task.toml`: a dotted key takes a time that grows with the square of its length."""

INTERNET: Network = "internet"


def task_folder(folder: Path) -> Folder:
    """Return the folder of a task. Raises ConfigurationError for a name that is no plain text of a line."""
    if not folder.name.isprintable() or len(folder.name) > 200:
        raise ConfigurationError(
            f"task {folder.name!a}: a task's folder needs a printable name of at most 200 characters"
        )
    return Folder(folder, f"task {folder.name!r}")


def tests_folder(files: Folder) -> Folder | None:
    """Return the folder of a task's tests, None if there is none. Links in it may not leave it."""
    path = files.subfolder("tests")
    return None if path is None else Folder(path, "the folder of tests")


def allowed(
    task: str, network: Network | Egress | None, allow_network: str | Collection[str]
) -> None:
    """Raise ConfigurationError unless the caller allows each server that a task's network may reach.

    `allow_network` has their names, as `Egress` has them, or "internet" for all.
    """
    listed = (allow_network,) if isinstance(allow_network, str) else tuple(allow_network)
    names = network.allow if isinstance(network, Egress) else [INTERNET] * (network == INTERNET)
    for name in names:
        if name not in listed and INTERNET not in listed:
            raise ConfigurationError(
                f"task {task!r} asks for the network {name!r}: if it may have it, load it with "
                f"allow_network=[{name!r}]; [{INTERNET!r}] allows every network"
            )


def public_network(allow_network: str | Collection[str]) -> Network:
    """Return "internet" if the caller allows every network, else "none"."""
    listed = (allow_network,) if isinstance(allow_network, str) else allow_network
    return INTERNET if INTERNET in listed else "none"


# Any: TOML values, here and below.
def read_settings(folder: Folder) -> dict[str, Any]:
    """Parse a `task.toml`; return {} if it does not exist. Raises ConfigurationError for invalid TOML."""
    try:
        return tomllib.loads(folder.text("task.toml", most=_MOST_SETTINGS) or "")
    except (ValueError, RecursionError) as error:
        if isinstance(error, ConfigurationError):
            raise
        raise folder.refusal(b"task.toml", f"is not valid: {error}") from error


def read_table(settings: dict[str, Any], name: str, folder: Path) -> dict[str, Any]:
    """Return the table `name` of a task's settings, or {} if it is missing.

    Raises ConfigurationError, which names `folder`, if the value is not a table.
    """
    table = settings.get(name, {})
    if not isinstance(table, dict):
        raise ConfigurationError(f"{folder / 'task.toml'}: [{name}] is not a table")
    return table


def dockerfile(files: Folder, where: str) -> tuple[Image | str | None, str | None]:
    """Return the image of the Dockerfile in a task's folder `where`, and its last WORKDIR; None for none.

    It is an image to build, or the name of its base if that with a WORKDIR is all.
    """
    folder = files.subfolder(where)
    if folder is None or files.find(f"{where}/Dockerfile") is None:
        return None, None
    image = Image.from_folder(folder)
    assert isinstance(image.base, Dockerfile)
    return (image if image.base.needs_build else image.base.base), image.base.workdir or None
