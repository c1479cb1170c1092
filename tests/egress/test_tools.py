"""Tools that programs use, through the proxy: pip, git, curl and wget find it by themselves."""

import subprocess
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sandboxkit import Sandbox, Session
from tests.components import require_program
from tests.egress.conftest import DEADLINE, Authority, QuietHandler, Records, rules, serving

DATA: dict[str, Any] = tomllib.loads(Path(__file__).with_name("tools.toml").read_text())
TOOLS = DATA["tools"]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder to serve: a file, an index of packages and a repository."""
    folder = tmp_path_factory.mktemp("mirror")
    packages = folder / "root" / "simple" / "tiny"
    packages.mkdir(parents=True)
    (folder / "root" / "file").write_text("content\n")
    with zipfile.ZipFile(packages / "tiny-1.0-py3-none-any.whl", "w") as wheel:
        for name, text in DATA["wheel"].items():
            wheel.writestr(name, text)
    subprocess.run(DATA["repository"], shell=True, check=True, cwd=folder, timeout=60)
    return folder / "root"


@pytest.fixture(scope="module")
def ports(root: Path, authority: Authority) -> Iterator[tuple[int, int]]:
    """The ports of two servers of the folder: plain HTTP, and TLS."""

    class Handler(QuietHandler):
        def translate_path(self, path: str) -> str:
            return str(root) + path.partition("?")[0]

    with serving(Handler) as plain, serving(Handler, authority.server) as tls:
        yield plain, tls


@pytest.fixture(scope="module")
def box(ports: tuple[int, int], authority: Authority) -> Iterator[tuple[Sandbox, Records]]:
    """A local sandbox, which has this machine's programs, and its records."""
    records = Records()
    allowed = [f"web.test:{port}" for port in ports]
    network = rules(records, *allowed, hosts={"web.test": "127.0.0.1"})
    files = {"/tmp/ca.pem": authority.certificate.read_bytes()}
    with Session("local", network=network, files=files) as session, session.sandbox() as sandbox:
        yield sandbox, records


INSTALLED = ("git", "curl", "wget")


@pytest.mark.parametrize("tool", TOOLS)
def test_tools_use_the_proxy(
    tool: str, box: tuple[Sandbox, Records], ports: tuple[int, int]
) -> None:
    require_program(tool, "DOCKER" if tool in INSTALLED else "")
    sandbox, records = box
    script = TOOLS[tool].replace("HTTP", str(ports[0])).replace("TLS", str(ports[1]))
    done = sandbox.exec(["sh", "-c", script], check=True).result(DEADLINE)
    assert done.stdout == "content\ncontent\n"
    assert all(record.allowed for record in records)
