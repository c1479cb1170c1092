"""Reads a task's folder, which somebody else may have made, and checks what it asks of the caller's machine."""

import os
import re
import tomllib
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from sandboxkit import ConfigurationError, Egress, Image
from sandboxkit.datasets import Folder
from sandboxkit.images import RegistryImage
from sandboxkit.types import Dockerfile, Network

_MOST_SETTINGS = 32 << 10
"""Bytes of a `task.toml`: a dotted key takes a time that grows with the square of its length."""

INTERNET: Network = "internet"
PUBLIC, NONE, ALLOWLIST = "public", "no-network", "allowlist"
OWN = "default"
"""Value of `image` that selects the provider's default image instead of the task's."""
COMPOSE = ("docker-compose.yaml", "docker-compose.yml")
_VARIABLE = re.compile(r"\$\{([^}:]+)(?::-(.*))?\}")


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


def image_and_workdir(
    files: Folder,
    where: str,
    named: object,
    override: str | None,
    *,
    dockerfile: str = "Dockerfile",
    required: bool = True,
) -> tuple[Image | str | None, str | None]:
    """Return the image and the working directory of a task's sandboxes; None means the provider's default.

    `override` is the user's image, `named` the prebuilt image that the task names; without both it is that of the
    Dockerfile in the task's folder `where`: an image to build, or its base if that with a WORKDIR is all.
    Raises ConfigurationError for an image that is no registry's, and for none if one is `required`.
    """
    folder, workdir = files.subfolder(where), None
    image: Image | str | None = None
    if folder is not None and files.find(f"{where}/{dockerfile}") is not None:
        image = Image.from_folder(folder, dockerfile)
        assert isinstance(image.base, Dockerfile)
        workdir = image.base.workdir or None
        image = image if image.base.needs_build else image.base.base
    if override is not None:
        image = None if override == OWN else override
    elif named is not None:
        image = RegistryImage(named, f"the task in {str(files.path)!r}")
    elif image is None and required:
        raise ConfigurationError(
            f"{files.path / where} names no image: give docker_image under [environment] in task.toml, a "
            f"Dockerfile, or image={OWN!r} for the provider's default"
        )
    return image, workdir


def network_of(mode: object, hosts: Sequence[str] | None = None) -> Network | Egress:
    """Return the sandbox's network for Harbor's `network_mode` and `allowed_hosts`.

    Raises ConfigurationError for an unknown mode, for hosts without the mode "allowlist", and for a host
    that is not a name, such as an IP address.
    """
    if mode != ALLOWLIST and hosts:
        raise ConfigurationError(
            f"allowed_hosts={hosts!r} needs network_mode={ALLOWLIST!r}, not {mode!r}"
        )
    if mode not in (PUBLIC, NONE, ALLOWLIST):
        raise ConfigurationError(
            f"network_mode={mode!r} cannot be honoured; there are {PUBLIC}, {NONE} and {ALLOWLIST}"
        )
    if mode == ALLOWLIST:
        return Egress(allow=hosts) if hosts else "none"
    return INTERNET if mode == PUBLIC else "none"


def changeable(network: Network | Egress) -> Network | Egress:
    """Return an equivalent network that can be changed later, for a sandbox whose phases differ.

    "internet" cannot be taken away from a running sandbox. It is replaced by an `Egress` that allows
    every public name on ports 80 and 443, by HTTP and TLS.
    """
    return Egress(allow=["*"]) if network == INTERNET else network


def variables(task: str, table: dict[str, Any], env_names: Collection[str]) -> dict[str, str]:
    """Expand values `${NAME}` and `${NAME:-default}` of the names in `env_names` from this process's environment.

    Raises ConfigurationError for another name, and for a variable that is not set and has no default.
    """
    found = dict[str, str]()
    for name, value in table.items():
        template = _VARIABLE.fullmatch(value)
        if template is None:
            found[name] = value
            continue
        if isinstance(env_names, str) or template[1] not in env_names:
            raise ConfigurationError(
                f"task {task!r}: {name}={value!r} reads the variable {template[1]!r} of this process: if the task may "
                f"have it, load it with env_names=[{template[1]!r}]"
            )
        given = os.environ.get(template[1], template[2])
        if given is None:
            raise ConfigurationError(
                f"task {task!r}: {name}={value!r}: the environment variable {template[1]} is not set"
            )
        found[name] = given
    return found
