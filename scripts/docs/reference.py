"""Generates the reference: a page section for every public name, and a GRPO run's settings."""

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = "grpo-settings"

# The package's names by page. A name on none of them goes to the last page.
CORE = {
    "session": ("Session", ["Session"]),
    "sandbox": ("Sandbox", ["Sandbox"]),
    "process": ("Process", ["Process", "ProcessResult", "Ending", "CommandUsage", "PtySize"]),
    "operation": ("Operation", ["Operation", "wait", "as_completed"]),
    "errors": ("Errors", []),
    "values": ("Values", []),
}
MODULES = {
    "terminal": ("Terminal", ["sandboxkit.terminal"]),
    "ports": ("Ports", ["sandboxkit.tunnels"]),
    "egress": ("Egress", ["sandboxkit.egress"]),
    "transfers": ("Upload and download", ["sandboxkit.transfers"]),
    "datasets": ("Datasets", ["sandboxkit.datasets"]),
    "images": ("Images", ["sandboxkit.images"]),
    "recording": ("Recordings", ["sandboxkit.recording"]),
    "ledger": ("Ledger", ["sandboxkit.ledger"]),
    "telemetry": ("Telemetry", ["sandboxkit.telemetry"]),
    "kernel": ("Kernel", ["sandboxkit.kernel"]),
    "provider": ("Provider contract", ["sandboxkit.provider"]),
    "options": ("Table of options", ["sandboxkit.options"]),
    "testing": (
        "Testing",
        [
            "sandboxkit.testing",
            "sandboxkit.testing.conformance",
            "sandboxkit.testing.live",
        ],
    ),
}
OF_THE_OPTIONS = """
The keywords that describe a sandbox are the [options](../options.md), each with its meaning, its
default and the providers that honour it.
"""
INHERITED = "inherited_members: true"
MADE = {
    "Sandbox",
    "Process",
    "Snapshot",
    "Terminal",
    "Kernel",
    "Exposed",
    "Served",
    "PortConnection",
}
"""Classes whose objects other calls make: their constructors are not shown."""
NO_CONSTRUCTOR = 'merge_init_into_class: false, filters: ["!^_[^_]", "!^__(init|new)__$"]'


def exported(module: str) -> list[str]:
    """Return a module's `__all__` in its order, without importing the module."""
    file = ROOT.joinpath(*module.split("."))
    path = file / "__init__.py" if file.is_dir() else file.with_suffix(".py")
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return [str(name) for name in ast.literal_eval(node.value)]
    return []


def _packages(folder: str) -> list[str]:
    """List the public packages of a folder that export names."""
    names = sorted(path.parent.name for path in (ROOT / folder).glob("[!_]*/__init__.py"))
    return [each for each in names if exported(f"sandboxkit.{folder}.{each}")]


def entries() -> dict[str, tuple[str, dict[str, list[str]]]]:
    """Map each API page's name to its title and to the names on it, by module."""
    names = exported("sandboxkit")
    errors = exported("sandboxkit.errors")
    placed = {name for _, some in CORE.values() for name in some} | set(errors)
    pages = {name: (title, {"sandboxkit": list(some)}) for name, (title, some) in CORE.items()}
    pages["errors"][1]["sandboxkit"] = errors
    pages["values"][1]["sandboxkit"] = [name for name in names if name not in placed]
    for name, (title, modules) in MODULES.items():
        pages[name] = (title, {each: exported(each) for each in modules})
    providers = [f"sandboxkit.providers.{each}" for each in _packages("providers")]
    pages["providers"] = ("Providers", {each: exported(each) for each in providers})
    for each in _packages("integrations"):
        module = f"sandboxkit.integrations.{each}"
        pages[f"integrations-{each}"] = (f"integrations.{each}", {module: exported(module)})
    return pages


def pages() -> dict[str, str]:
    """Map each page's path on the site to its text, for the reference without the command line."""
    found = {f"reference/{name}.md": _page(name, *entry) for name, entry in entries().items()}
    found[f"reference/{SETTINGS}.md"] = settings()
    found["reference/index.md"] = index()
    return found


def _page(name: str, title: str, modules: dict[str, list[str]]) -> str:
    parts = [f"# {title}\n"]
    inherited = [INHERITED] if name in ("terminal", "kernel") else []
    if name in ("session", "sandbox"):
        parts.append(OF_THE_OPTIONS)
    for module, names in modules.items():
        docstring = _module(module if name != "errors" else "sandboxkit.errors")
        if module != "sandboxkit" or name == "errors":
            parts.append(f"\n{docstring}\n")
        if module != "sandboxkit":
            parts.append(f"\nImport from `{module}`.\n")
        for each in names:
            options = ", ".join([*inherited, *([NO_CONSTRUCTOR] if each in MADE else [])])
            parts.append(f"\n::: {module}.{each}\n    options: {{{options}}}\n")
    return "".join(parts)


def index() -> str:
    """Return the page that lists all public names."""
    parts = [
        "# Reference\n\nEvery public name. What a call returns and raises is in its docstring, which",
        " `help()` and these pages show. The [options](../options.md) of a sandbox, the ",
        "[command line](command-line.md) and the [settings of a GRPO run](grpo-settings.md) have ",
        "pages of their own.\n",
    ]
    for name, (title, modules) in entries().items():
        parts.append(f"\n## [{title}]({name}.md)\n\n")
        for module, names in modules.items():
            links = [f"[`{each}`]({name}.md#{module}.{each})" for each in names]
            parts.append(f"`{module}`: {', '.join(links)}\n\n")
    return "".join(parts)


def settings() -> str:
    """Return the page of a GRPO run's settings, generated from their dataclasses."""
    folder = ROOT / "integrations" / "grpo"
    classes = {
        node.name: node
        for path in (folder / "objective.py", folder / "config.py")
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef)
    }
    parts = [
        "# Settings of a GRPO run\n\nGenerated from `integrations/grpo/config.py`. They stand in the ",
        "run's TOML file, `[section]` by section, or behind `--set section.name=value`; see ",
        "[GRPO](../grpo.md). A run may continue with other values of `engine` and of the settings ",
        "that may change.\n",
    ]
    for field in classes["Config"].body:
        if isinstance(field, ast.AnnAssign):
            section, kind = ast.unparse(field.target), classes[_annotation(field.annotation)[0]]
            parts.append(f"\n## {section}\n\n{ast.get_docstring(kind) or ''}\n\n{_fields(kind)}")
    return "".join(parts)


def _fields(kind: ast.ClassDef) -> str:
    rows = ["| setting | type | default | meaning |\n| --- | --- | --- | --- |\n"]
    for node, after in zip(kind.body, [*kind.body[1:], None], strict=True):
        if not isinstance(node, ast.AnnAssign):
            continue
        docstring = after.value if isinstance(after, ast.Expr) else None
        meaning = (
            " ".join(str(ast.literal_eval(docstring)).split()) if docstring is not None else ""
        )
        default = ast.unparse(node.value) if node.value is not None else ""
        if default.startswith("field("):
            default = "{}"
        kind_of, rules = _annotation(node.annotation)
        shown = ", ".join([f"`{kind_of}`", *rules])
        cells = [f"`{ast.unparse(node.target)}`", shown, f"`{default}`", meaning]
        escaped = [cell.replace("|", "\\|") for cell in cells]
        rows.append(f"| {' | '.join(escaped)} |\n")
    return "".join(rows)


def _annotation(node: ast.expr) -> tuple[str, list[str]]:
    """Return the type of a field, and the rules of `Annotated[type, rule, ...]` in words."""
    if not (isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Tuple)):
        return ast.unparse(node), []
    if ast.unparse(node.value) != "Annotated":
        return ast.unparse(node), []
    kind, *rules = node.slice.elts
    words = [each.value if isinstance(each, ast.Constant) else "may change" for each in rules]
    return ast.unparse(kind), [str(each) for each in words]


def _module(name: str) -> str:
    file = ROOT.joinpath(*name.split("."))
    path: Path = file / "__init__.py" if file.is_dir() else file.with_suffix(".py")
    return ast.get_docstring(ast.parse(path.read_text())) or ""
