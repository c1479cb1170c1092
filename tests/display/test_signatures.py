"""The options are declared once, and people find each with its type, default and meaning."""

import inspect
import json
import os
import pydoc
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from sandboxkit import SandboxSpec, Session
from sandboxkit.options import ALL_OPTIONS, SpecOptions

NAMES = [option.name for option in ALL_OPTIONS]
DEFAULTS = {option.name: option.default for option in ALL_OPTIONS}
MEANINGS = {option.name: option.meaning for option in ALL_OPTIONS}
ROOT = Path(__file__).resolve().parents[2]
SERVER = Path(sys.executable).with_name("pyright-langserver")
USE = """from sandboxkit import Session
session = Session("local", memory_mb=64)
session.sandbox(lifetime=60)
"""


def test_each_option_says_what_it_means_and_its_default() -> None:
    assert NAMES == list(SpecOptions.__annotations__) == list(MEANINGS)
    for name, output in MEANINGS.items():
        assert "default" in output.lower(), name
        assert str(DEFAULTS[name]) in output, name


@pytest.mark.parametrize("thing", [Session, Session.sandbox, Session.run])
def test_a_signature_names_each_option(thing: Callable[..., object]) -> None:
    found = inspect.signature(thing).parameters
    assert [name for name in found if name in NAMES] == NAMES
    assert not [each for each in found.values() if each.kind is each.VAR_KEYWORD]
    defaults = {name: found[name].default for name in NAMES}
    if thing is Session:
        assert defaults == DEFAULTS
    else:
        assert {repr(each) for each in defaults.values()} == {"<the session's>"}
    assert inspect.formatannotation(found["memory_mb"].annotation) == "int | None"


@pytest.mark.parametrize("thing", [Session, Session.sandbox, SandboxSpec])
def test_help_says_what_each_option_means(thing: object) -> None:
    words = " ".join(pydoc.plain(pydoc.render_doc(thing)).replace("|", " ").split())
    for name, output in MEANINGS.items():
        assert " ".join(output.replace("|", " ").split()) in words, name


def test_help_without_docstrings_or_source_is_no_error() -> None:
    subprocess.run([sys.executable, "-OO", "-c", "import sandboxkit"], check=True, cwd=ROOT)
    code = "import linecache; linecache.getlines = lambda *_: []; import sandboxkit"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


@contextmanager
def editor(folder: Path) -> Iterator[Callable[..., Any]]:  # Any: JSON
    """A language server, as editors start it; gives a function for its requests."""
    server = subprocess.Popen(
        [SERVER, "--stdio"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert server.stdin is not None
    assert server.stdout is not None
    send, receive = server.stdin, server.stdout

    def tell(message: dict[str, Any]) -> None:
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        send.write(b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
        send.flush()

    def heard() -> dict[str, Any]:
        size = 0
        while (line := receive.readline()) not in (b"\r\n", b""):
            size = int(line.split(b":")[1]) if line.startswith(b"Content-Length") else size
        message: dict[str, Any] = json.loads(receive.read(size))
        return message

    def ask(method: str, params: dict[str, Any], *, answered: bool = True) -> Any:
        tell({"method": method, "params": params, **({"id": 1} if answered else {})})
        while answered:
            message = heard()
            if "method" in message and "id" in message:  # it asks for settings: there are none
                items = message["params"].get("items", [])
                tell({"id": message["id"], "result": [{} for _ in items]})
            elif message.get("id") == 1:
                return message["result"]
        return None

    try:
        yield ask
    finally:
        server.kill()
        server.wait()
        send.close()
        receive.close()


@pytest.mark.skipif(not SERVER.exists(), reason="pyright is not installed")
def test_an_editor_shows_what_an_option_means(tmp_path: Path) -> None:
    document = {"uri": (tmp_path / "use.py").as_uri(), "languageId": "python", "version": 1}
    root = {"rootUri": tmp_path.as_uri(), "processId": None}
    with editor(tmp_path) as ask:
        ask("initialize", {**root, "capabilities": {}})
        ask("initialized", {}, answered=False)
        opened = {"textDocument": {**document, "text": USE}}
        ask("textDocument/didOpen", opened, answered=False)
        for line, name in ((1, "memory_mb"), (2, "lifetime")):
            at = {"line": line, "character": USE.splitlines()[line].index(name)}
            place = {"textDocument": document, "position": at}
            hover = ask("textDocument/hover", place)["contents"]
            assert MEANINGS[name] in str(hover).replace("\\n", " ")
            label = ask("textDocument/signatureHelp", place)["signatures"][0]["label"]
            assert [each for each in NAMES if f" {each}: " not in label] == []
