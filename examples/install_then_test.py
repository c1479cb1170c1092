"""Install from a package index with nothing else allowed, then run the tests without any network.

The index here is a folder that this program serves. With a real one, `Egress(allow=["pypi.org",
"files.pythonhosted.org"])` is enough, and pip needs no option.
"""

import contextlib
import http.server
import io
import tempfile
import threading
import zipfile
from functools import partial
from pathlib import Path

from sandboxkit import Egress, Session

TEST = """
import urllib.error, urllib.request
from tiny import answer
assert answer == 42
try:
    urllib.request.urlopen("http://index.test/")
except urllib.error.HTTPError as error:
    print("tested:", error.read().decode().strip())
"""


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves a folder without a log."""

    def log_message(self, format: str, *args: object) -> None:
        pass


def wheel() -> bytes:
    """Return a package with one module, `tiny`."""
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as file:
        file.writestr("tiny.py", "answer = 42")
        about = "tiny-1.0.dist-info"
        file.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n")
        file.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        file.writestr(f"{about}/RECORD", "")
    return data.getvalue()


with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
    package = Path(folder, "simple", "tiny")
    package.mkdir(parents=True)
    (package / "tiny-1.0-py3-none-any.whl").write_bytes(wheel())
    index = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=folder))
    threading.Thread(target=index.serve_forever, daemon=True).start()
    stack.callback(index.server_close)
    stack.callback(index.shutdown)

    host = f"index.test:{index.server_port}"
    rules = Egress(allow=[host], hosts={"index.test": "127.0.0.1"}, private=["127.0.0.1"])
    session = stack.enter_context(Session(network=rules))
    sandbox = session.sandbox()
    pip = ["python3", "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    pip += ["--root-user-action=ignore", "--target=/workspace", "--no-cache-dir"]
    pip += ["--trusted-host=index.test", f"--index-url=http://{host}/simple", "tiny"]
    print("installed:", sandbox.exec(pip, check=True).result().returncode == 0)
    sandbox.set_network("none").result()
    print(sandbox.exec(["python3", "-c", TEST]).result().stdout, end="")
