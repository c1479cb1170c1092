"""The options are declared once, and people find each with its type, default and meaning."""

import inspect
import json
import os
import pydoc
import subprocess
import sys
from collections.abc import Callable
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


def replies(folder: Path, *messages: dict[str, Any]) -> list[Any]:
    """The results of the requests among some messages to a language server, as editors start it."""
    command, env = [SERVER, "--stdio"], {**os.environ, "PYTHONPATH": str(ROOT)}
    pipe = subprocess.PIPE
    server: Any = subprocess.Popen(command, cwd=folder, env=env, stdin=pipe, stdout=pipe)

    def send(message: dict[str, Any]) -> None:
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        server.stdin.write(b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
        server.stdin.flush()

    def receive() -> Any:
        head = b"".join(iter(server.stdout.readline, b"\r\n"))
        return json.loads(server.stdout.read(int(head.partition(b"Content-Length:")[2].split()[0])))

    with server:
        try:
            found = []
            for message in messages:
                send(message)
                while "id" in message:
                    got = receive()
                    if got.get("id") == message["id"] and "method" not in got:
                        found.append(got["result"])
                        break
                    if "id" in got:  # it asks for settings: there are none
                        items = got["params"].get("items", [])
                        send({"id": got["id"], "result": [{} for _ in items]})
            return found
        finally:
            server.kill()


@pytest.mark.skipif(not SERVER.exists(), reason="pyright is not installed")
def test_an_editor_shows_what_an_option_means(tmp_path: Path) -> None:
    document = {"uri": (tmp_path / "use.py").as_uri(), "languageId": "python", "version": 1}
    root = {"rootUri": tmp_path.as_uri(), "processId": None, "capabilities": {}}
    names, asked = ("memory_mb", "lifetime"), []
    for line, name in enumerate(names, 1):
        at = {"line": line, "character": USE.splitlines()[line].index(name)}
        for method in ("hover", "signatureHelp"):
            params = {"textDocument": document, "position": at}
            asked.append({"id": 1, "method": f"textDocument/{method}", "params": params})
    _, *found = replies(
        tmp_path,
        {"id": 1, "method": "initialize", "params": root},
        {"method": "initialized", "params": {}},
        {"method": "textDocument/didOpen", "params": {"textDocument": {**document, "text": USE}}},
        *asked,
    )
    for name, hover, signature in zip(names, found[::2], found[1::2], strict=True):
        assert MEANINGS[name] in str(hover["contents"]).replace("\\n", " ")
        label = signature["signatures"][0]["label"]
        assert [each for each in NAMES if f" {each}: " not in label] == []
