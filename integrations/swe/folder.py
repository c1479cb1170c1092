"""Parsers for the files of a task's folder: task.toml and Dockerfile."""

import posixpath
import re
import tomllib
from pathlib import Path
from typing import Any

from sandboxkit import ConfigurationError


# Any: TOML values, here and below.
def read_settings(path: Path) -> dict[str, Any]:
    """Parse a `task.toml`; return {} if it does not exist. Raises ConfigurationError for invalid TOML."""
    if not path.is_file():
        return {}
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise ConfigurationError(f"{path}: {error}") from error


def read_table(settings: dict[str, Any], name: str, folder: Path) -> dict[str, Any]:
    """Return the table `name` of a task's settings, or {} if it is missing.

    Raises ConfigurationError, which names `folder`, if the value is not a table.
    """
    table = settings.get(name, {})
    if not isinstance(table, dict):
        raise ConfigurationError(f"{folder / 'task.toml'}: [{name}] is not a table")
    return table


def dockerfile(text: str) -> tuple[str | None, str | None, set[str]]:
    """Parse a Dockerfile; return the last FROM image, the last WORKDIR and all instructions for a build.

    FROM, WORKDIR, CMD, ENTRYPOINT and LABEL need no build.
    """
    base: str | None = None
    workdir: str | None = None
    more = set[str]()
    for line in re.sub(r"\\\n", " ", text).splitlines():
        word, _, rest = line.strip().partition(" ")
        match word.upper():
            case "FROM":
                words = [each for each in rest.split() if not each.startswith("--")]
                base, workdir = words[0] if words else None, None
            case "WORKDIR":
                workdir = posixpath.normpath(posixpath.join(workdir or "/", rest.strip()))
            case "" | "CMD" | "ENTRYPOINT" | "LABEL":
                pass
            case other if not other.startswith("#"):
                more.add(other)
    return base, workdir, more
