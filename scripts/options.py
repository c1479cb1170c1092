"""Writes docs/options.md: every option, and which providers honour it according to their code.

python scripts/options.py
"""

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from sandboxkit import ConfigurationError, Interpreter, SandboxSpec, _spec
from sandboxkit.display import signatures
from sandboxkit.providers.daytona import _spec as daytona
from sandboxkit.providers.docker import _container as docker
from sandboxkit.providers.e2b import _spec as e2b
from sandboxkit.providers.kubernetes import _options
from sandboxkit.providers.kubernetes import _spec as kubernetes
from sandboxkit.providers.local import LocalProvider, _cgroup
from sandboxkit.providers.modal import _spec as modal

DOCUMENT = Path(__file__).resolve().parents[1] / "docs" / "options.md"
DAY = 24 * 3600

CHECKS: dict[str, Callable[[SandboxSpec], None]] = {
    "local": LocalProvider().check,
    "docker": docker.check,
    "kubernetes": lambda spec: kubernetes.check(spec, _options.ClusterOptions()),
    "e2b": e2b.check,
    "daytona": daytona.check,
    "modal": modal.check,
}
# Any: options are of many types, as a caller writes them.
PROBES: dict[str, dict[str, Any]] = {
    "image": {"image": "python:3.12"},
    "command": {"command": ["sleep", "60"]},
    "env": {"env": {"A": "1"}},
    "workdir": {"workdir": "/work"},
    "user='root'": {"user": "root"},
    "user='1000'": {"user": "1000"},
    "cpus": {"cpus": 1},
    "memory_mb": {"memory_mb": 1024},
    "disk_mb": {"disk_mb": 1024},
    "pids": {"pids": 64},
    "network='internet'": {"network": "internet"},
    "lifetime, a day": {"lifetime": DAY},
    "lifetime, a week": {"lifetime": 7 * DAY},
    "lifetime=None": {"lifetime": None},
    "start_timeout": {"start_timeout": 60},
    "tags": {"tags": "run:1"},
    "files": {"files": {"/data/a": b"1"}},
    "secrets": {"secrets": {"A": "1"}},
    "gpu": {"gpu": "1"},
    "profile='strict'": {"profile": "strict"},
    "detach": {"detach": True},
    "interpreter": {"interpreter": Interpreter()},
    "reuse='reset'": {"reuse": "reset", "profile": "strict"},
}
WITH: dict[str, dict[str, Any]] = {
    "yes": {},
    "with `profile='strict'`": {"profile": "strict"},
    "with an image of a registry": {"image": "python:3.12"},
}

OPENING = """# Options

The keywords of `Session(...)`, which are defaults for its sandboxes, and of `session.sandbox(...)`,
`run(...)`, `run_python(...)` and `warm(...)`. `env`, `secrets` and `tags` are put over those of the
session, everything else replaces. This page is written by `python scripts/options.py`, and a test says
when it is not current.

"""
BETWEEN = """
## Which provider honours what

Each provider was asked for its check of a sandbox with the option. What it does not honour it refuses
with `ConfigurationError` before anything is created.

"""


def control_groups(*names: str) -> AbstractContextManager[object]:
    """Pretend that this machine lets us write exactly these control groups."""
    return patch.object(_cgroup, "available", lambda: frozenset(names))


def refusal(name: str, options: dict[str, Any]) -> str | None:
    """Return why a provider refuses these options, or None if it accepts them."""
    try:
        CHECKS[name](_spec.build(SandboxSpec(), options))
    except ConfigurationError as error:
        return str(error).partition(": ")[2] or str(error)
    return None


def honours(name: str, probe: dict[str, Any]) -> str:
    """Return whether a provider honours an option, what it needs for that, or why it refuses."""
    with control_groups("memory", "pids", "cpu"):
        said = {how: refusal(name, {**probe, **more}) for how, more in WITH.items()}
    if (how := next((how for how, why in said.items() if why is None), None)) is None:
        return f"no: {said['yes']}"
    with control_groups():
        if how == "yes" and refusal(name, probe) is not None:
            return "where control groups may be written"
    return how


def table(rows: list[list[str]]) -> str:
    """Format rows as a Markdown table; the first row is the header."""
    rows = [rows[0], ["---"] * len(rows[0]), *rows[1:]]
    escaped = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    return "".join(f"| {' | '.join(row)} |\n" for row in escaped)


def document() -> str:
    """Return the whole page as Markdown."""
    meanings = [
        [f"`{name}`", f"`{signatures.kind(name)}`", f"`{signatures.DEFAULTS[name]!r}`", meaning]
        for name, meaning in signatures.MEANINGS.items()
    ]
    honoured = [
        [f"`{label}`", *(honours(name, probe) for name in CHECKS)]
        for label, probe in PROBES.items()
    ]
    first = table([["option", "type", "default", "meaning"], *meanings])
    second = table([["option", *(f"`{name}`" for name in CHECKS)], *honoured])
    return OPENING + first + BETWEEN + second


if __name__ == "__main__":
    sys.stdout.write(f"{DOCUMENT.name}: {DOCUMENT.write_text(document())} characters\n")
