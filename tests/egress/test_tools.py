"""Tools that programs use, through the proxy: pip, git, curl and wget find it by themselves."""

import http.server
import ssl
import subprocess
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandboxkit import Egress, Sandbox, Session
from tests.components import require_program
from tests.egress.world import DEADLINE, Authority, Records

TOOLS = {
    "curl": "curl -sS http://web.test:HTTP/file && curl -sS --cacert /tmp/ca.pem https://web.test:TLS/file",
    "wget": "wget -qO- http://web.test:HTTP/file && wget -qO- --ca-certificate=/tmp/ca.pem https://web.test:TLS/file",
    "git": "git clone -q http://web.test:HTTP/repo.git /tmp/one && "
    "GIT_SSL_CAINFO=/tmp/ca.pem git clone -q https://web.test:TLS/repo.git /tmp/two && cat /tmp/one/f /tmp/two/f",
    "python3": "python3 -m pip install -q --no-cache-dir --disable-pip-version-check --cert /tmp/ca.pem "
    "--index-url https://web.test:TLS/simple --target /tmp/pip tiny && cat /tmp/pip/tiny.py /tmp/pip/tiny.py",
}
WHEEL = {
    "tiny.py": "content\n",
    "tiny-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n",
    "tiny-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    "tiny-1.0.dist-info/RECORD": "",
}
REPOSITORY = """
git init -q work && cd work && echo content >f && git add f &&
git -c user.name=a -c user.email=a@b commit -qm x && cd .. &&
git clone -q --bare work root/repo.git && cd root/repo.git && git update-server-info
"""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder to serve: a file, an index of packages and a repository."""
    folder = tmp_path_factory.mktemp("mirror")
    packages = folder / "root" / "simple" / "tiny"
    packages.mkdir(parents=True)
    (folder / "root" / "file").write_text("content\n")
    with zipfile.ZipFile(packages / "tiny-1.0-py3-none-any.whl", "w") as wheel:
        for name, text in WHEEL.items():
            wheel.writestr(name, text)
    subprocess.run(REPOSITORY, shell=True, check=True, cwd=folder, timeout=60)
    return folder / "root"


@pytest.fixture(scope="module")
def ports(root: Path, authority: Authority) -> Iterator[tuple[int, int]]:
    """The ports of two servers of the folder: plain HTTP, and TLS."""

    class Handler(http.server.SimpleHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def translate_path(self, path: str) -> str:
            return str(root) + path.partition("?")[0]

        def log_message(self, format: str, *args: object) -> None:
            pass

    class Server(http.server.ThreadingHTTPServer):
        def __init__(self, tls: ssl.SSLContext | None) -> None:
            super().__init__(("127.0.0.1", 0), Handler)
            if tls is not None:
                self.socket = tls.wrap_socket(
                    self.socket, server_side=True, do_handshake_on_connect=False
                )

        def handle_error(self, request: object, client_address: object) -> None:
            pass  # a client that breaks off

    servers = [Server(None), Server(authority.server)]
    threads = [threading.Thread(target=each.serve_forever) for each in servers]
    for thread in threads:
        thread.start()
    try:
        yield servers[0].server_port, servers[1].server_port
    finally:
        for server, thread in zip(servers, threads, strict=True):
            server.shutdown()
            server.server_close()
            thread.join(DEADLINE)


@pytest.fixture(scope="module")
def box(ports: tuple[int, int], authority: Authority) -> Iterator[tuple[Sandbox, Records]]:
    """A local sandbox, which has this machine's programs, and its records."""
    records = Records()
    rules = Egress(
        [f"web.test:{port}" for port in ports],
        hosts={"web.test": "127.0.0.1"},
        private=["127.0.0.1"],
        log=records.add,
    )
    files = {"/tmp/ca.pem": authority.certificate.read_bytes()}
    with Session("local", network=rules, files=files) as session, session.sandbox() as sandbox:
        yield sandbox, records


INSTALLED = ("git", "curl", "wget")


@pytest.mark.parametrize("tool", TOOLS)
def test_a_tool_goes_through_the_proxy(
    tool: str, box: tuple[Sandbox, Records], ports: tuple[int, int]
) -> None:
    require_program(tool, "DOCKER" if tool in INSTALLED else "")
    sandbox, records = box
    script = TOOLS[tool].replace("HTTP", str(ports[0])).replace("TLS", str(ports[1]))
    done = sandbox.exec(["sh", "-c", script], check=True).result(DEADLINE)
    assert done.stdout == "content\ncontent\n"
    assert all(record.allowed for record in records)
