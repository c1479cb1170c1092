"""Write docs/options.md: every option, and which providers honour it according to their code.

python scripts/options.py
"""

import dataclasses
import itertools
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Literal, get_origin
from unittest.mock import patch

from sandboxkit import ConfigurationError, SandboxSpec, _spec
from sandboxkit.options import ALL_OPTIONS, ConfigOptions, Option
from sandboxkit.provider import Provider
from sandboxkit.providers.daytona import DaytonaProvider
from sandboxkit.providers.docker import DockerProvider
from sandboxkit.providers.docker import _container as docker
from sandboxkit.providers.e2b import E2BProvider
from sandboxkit.providers.kubernetes import KubernetesProvider, _options
from sandboxkit.providers.kubernetes import _spec as kubernetes
from sandboxkit.providers.local import LocalProvider, _cgroup, _start_errors
from sandboxkit.providers.modal import ModalProvider
from sandboxkit.providers.service import ServiceProvider
from sandboxkit.providers.service import _provider as service

DOCUMENT = Path(__file__).resolve().parents[1] / "docs" / "options.md"

LANDLOCK = "landlock"
"""The column of local sandboxes with isolation="landlock"."""
CHECKS: dict[str, Callable[[SandboxSpec], None]] = {
    "local": LocalProvider().check,
    LANDLOCK: LocalProvider().check,
    "docker": docker.check,
    "kubernetes": lambda spec: kubernetes.check(spec, _options.ClusterOptions()),
    "e2b": E2BProvider().check_options,
    "daytona": DaytonaProvider().check_options,
    "modal": ModalProvider().check_options,
    "service": service.check,
}
KINDS: dict[str, type[Provider]] = {
    "local": LocalProvider,
    LANDLOCK: LocalProvider,
    "docker": DockerProvider,
    "kubernetes": KubernetesProvider,
    "e2b": E2BProvider,
    "daytona": DaytonaProvider,
    "modal": ModalProvider,
    "service": ServiceProvider,
}
STRICTLY = "with `profile='strict'`"
WITH: dict[str, dict[str, Any]] = {
    "yes": {},
    STRICTLY: {"profile": "strict"},
    "with an image of a registry": {"image": "python:3.12"},
    "with `network='internet'`": {"network": "internet"},
    "with `profile='strict'` and an image of a registry": {
        "profile": "strict",
        "image": "python:3.12",
    },
}

OPENING = """# Options

Pass these keywords to `Session(...)` as defaults for its sandboxes, or to `session.sandbox(...)`,
`run(...)`, `run_python(...)` and `warm(...)`. `env`, `secrets` and `tags` are merged with the session's
values; every other option overrides them. `python scripts/options.py` writes this page, and a test fails
if it is out of date. `sandboxkit run`, `shell`, `mcp` and `doctor --live` have the flags of the fifth
column. The last column says whether `SandboxkitConfig` (Inspect) and `SandboxkitClientOptions` (OpenAI
Agents) have the option as a field. `sandboxkit run -d` sets `detach` and `command`.

"""
BETWEEN = """
## Which provider honours what

The table shows the result of each provider's own check: ✓ means yes, ✓ with a number yes under a condition, and
✗ no, for the reason with that number below the table. A provider refuses an unsupported option with
`ConfigurationError` before it creates anything. `landlock` is `local` with `isolation="landlock"`; what its
sandboxes lack besides is in [isolation](concepts/isolation.md#landlock). `service` passes the options on to the
backend of `sandboxkit serve`, which decides when the sandbox starts.

"""


def control_groups(*names: str) -> AbstractContextManager[object]:
    """Pretend that this machine lets us write exactly these control groups."""
    return patch.object(_cgroup, "available", lambda: frozenset(names))


def refusal(name: str, options: dict[str, Any]) -> str | None:
    """Return why a provider refuses these options, or None if it accepts them."""
    try:
        base = SandboxSpec(isolation="landlock" if name == LANDLOCK else None)
        spec = _spec.build(base, options)
        _spec.check_abilities(KINDS[name], spec)
        CHECKS[name](spec)
    except ConfigurationError as error:
        return str(error).partition(": ")[2] or str(error)
    return None


def honours(name: str, probe: dict[str, Any]) -> str:
    """Return whether a provider honours an option, what it needs for that, or why it refuses."""
    with control_groups("memory", "pids", "cpu"):
        reasons = {how: refusal(name, {**more, **probe}) for how, more in WITH.items()}
    if (how := next((how for how, why in reasons.items() if why is None), None)) is None:
        needs_strict = "profile='strict'" in str(reasons["yes"])
        return f"no: {reasons[STRICTLY if needs_strict else 'yes']}"
    with control_groups():
        if how == "yes" and refusal(name, probe) is not None:
            return "where control groups may be written"
    return how


def marked(cells: Iterable[Iterable[str]]) -> tuple[list[list[str]], str]:
    """Return the cells as marks, and the numbered list of the conditions and reasons behind them."""
    numbers: dict[str, int] = {}

    def mark(cell: str) -> str:
        if cell == "yes":
            return "✓"
        reason = cell.removeprefix("no: ")
        number = numbers.setdefault(reason, len(numbers) + 1)
        return f"{'✓' if cell == reason else '✗'}&nbsp;[{number}](#note-{number})"

    rows = [[mark(cell) for cell in row] for row in cells]
    notes = (f'{number}. <a id="note-{number}"></a>{text}\n' for text, number in numbers.items())
    return rows, "".join(notes)


def table(rows: list[list[str]]) -> str:
    """Format rows as a Markdown table; the first row is the header."""
    rows = [rows[0], ["---"] * len(rows[0]), *rows[1:]]
    escaped = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    return "".join(f"| {' | '.join(row)} |\n" for row in escaped)


def spelled(option: Option) -> list[str]:
    """Return an option's row of the first table."""
    flag = f"`{option.flag}`" if option.flag else "no"
    adapters = "yes" if option.name in ConfigOptions.__annotations__ else "no"
    kind, default = f"`{option.kind}`", f"`{option.default!r}`"
    return [f"`{option.name}`", kind, default, option.meaning, flag, adapters]


def labelled(option: Option) -> list[tuple[str, dict[str, Any]]]:
    """Return each example of an option with its row's title in the second table."""
    examples = [{option.name: example} for example in option.examples]
    if len(examples) == 1 and get_origin(option.type) is not Literal:
        return [(option.name, examples[0])]
    return [(f"{option.name}={_short(example[option.name])}", example) for example in examples]


# Any: examples are of many types.
def _short(value: Any) -> str:
    if isinstance(value, Mapping):
        shown = (f"{key!r}: {_short(each)}" for key, each in value.items())
        return f"{{{', '.join(shown)}}}"
    if isinstance(value, str) and value.startswith("sha256:"):
        return "'sha256:...'"
    return f"{type(value).__name__}(...)" if dataclasses.is_dataclass(value) else repr(value)


def document() -> str:
    """Return the whole page as Markdown."""
    titles = ["option", "type", "default", "meaning", "command line", "Inspect, OpenAI Agents"]
    rows = [labelled(option) for option in ALL_OPTIONS]
    with patch.object(
        _start_errors, "landlock_lacks", lambda: ""
    ):  # whatever this machine's kernel has
        probes = dict(itertools.chain.from_iterable(rows))
        honoured = [[honours(name, probe) for name in CHECKS] for probe in probes.values()]
    first = table([titles, *map(spelled, ALL_OPTIONS)])
    marks, notes = marked(honoured)
    labels = (f"`{label}`" for label in probes)
    body = [[label, *row] for label, row in zip(labels, marks, strict=True)]
    second = table([["option", *CHECKS], *body])
    return f"{OPENING}{first}{BETWEEN}{second}\n{notes}"


if __name__ == "__main__":
    sys.stdout.write(f"{DOCUMENT.name}: {DOCUMENT.write_text(document())} characters\n")
