"""The cluster that the tests use, looked at and disturbed without sandboxkit's own help."""

import base64
import contextlib
import fcntl
import functools
import json
import os
import ssl
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

SCRIPT = Path(__file__).parents[2] / "scripts" / "kube.sh"
STATE = Path(os.environ.get("SANDBOXKIT_KUBE_DIR", "/var/lib/sbk-kube"))

Program = Literal["etcd", "api", "controllers", "scheduler", "containerd", "kubelet", "sandboxes"]


class ApiError(Exception):
    """The API server refused: its status code, reason and message."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(f"{status} {reason}: {message}")
        self.status = status
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Cluster:
    """A user's view of the API server, and what can be done to the programs behind it."""

    kubeconfig: Path
    server: str
    token: str
    tls: ssl.SSLContext

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,  # any JSON
        *,
        query: Mapping[str, str] | None = None,
        content: str = "application/json",
        timeout: float = 30,
    ) -> Any:  # the server's JSON
        """Ask the API server. Raises ApiError for an answer that is an error, OSError without one."""
        url = self.server + path + (f"?{urllib.parse.urlencode(query)}" if query else "")
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(url, data, method=method)
        request.add_header("Authorization", f"Bearer {self.token}")
        request.add_header("Content-Type", content)
        try:
            with urllib.request.urlopen(request, timeout=timeout, context=self.tls) as answer:
                return json.loads(answer.read())
        except urllib.error.HTTPError as error:
            raise _api_error(error) from None

    def pods(self, namespace: str, selector: str = "") -> list[dict[str, Any]]:
        """Every pod there is in the namespace, as the API server describes them."""
        path, query = f"/api/v1/namespaces/{namespace}/pods", {"labelSelector": selector}
        items: list[dict[str, Any]] = self.request("GET", path, query=query)["items"]
        return items

    @property
    def is_of_script(self) -> bool:
        """Whether scripts/kube.sh runs it, so that its programs can be stopped and its files read."""
        return self.kubeconfig == STATE / "kubeconfig"

    def has_version(self, minor: int) -> bool:
        """Whether the API server is of version 1.`minor` or newer."""
        return _minor(self) >= minor

    def ready(self) -> bool:
        """Whether the API server answers and a node takes pods."""
        try:
            nodes = self.request("GET", "/api/v1/nodes", timeout=5)["items"]
        except (ApiError, OSError):
            return False
        conditions = [each for node in nodes for each in node["status"]["conditions"]]
        return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)

    def wait_until_ready(self) -> None:
        """Return once API server and node are ready; TimeoutError after two minutes."""
        wait_until(self.ready, "a node that is ready", seconds=120)

    @contextlib.contextmanager
    def held(self, *, alone: bool = False) -> Iterator[None]:
        """Wait for one's turn: either alone, or with others while nobody is alone."""
        with open(self.kubeconfig) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
            yield

    @contextlib.contextmanager
    def _disturbed(self, program: Program, how: str, back: str) -> Iterator[None]:
        _run(how, program)
        try:
            yield
        finally:
            _run(back, program)
            self.wait_until_ready()

    def without(self, program: Program) -> contextlib.AbstractContextManager[None]:
        """Kill a program, and have it back and the cluster ready afterwards."""
        return self._disturbed(program, "kill", "start")

    def frozen(self, program: Program) -> contextlib.AbstractContextManager[None]:
        """Stop a program where it is: its connections stay open and nothing answers."""
        return self._disturbed(program, "freeze", "thaw")


@functools.cache
def _minor(cluster: Cluster) -> int:
    version: dict[str, str] = cluster.request("GET", "/version")
    return int(version["minor"].rstrip("+"))


def wait_until(condition: Callable[[], bool], what: str, *, seconds: float = 60) -> None:
    """Return once the condition holds; TimeoutError if it does not in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} did not come in {seconds:.0f} s")
        time.sleep(0.1)


@functools.cache
def find_cluster() -> Cluster | str:
    """The administrator's view of the cluster, or why there is none to use.

    It is the one of `SANDBOXKIT_KUBECONFIG`, or else the one that scripts/kube.sh has started.
    `KUBECONFIG` is not asked: whoever has set it may work on a cluster that is not for tests.
    """
    kubeconfig = Path(os.environ.get("SANDBOXKIT_KUBECONFIG") or STATE / "kubeconfig")
    if not kubeconfig.is_file():
        return f"{kubeconfig} is not there"
    try:
        cluster = view(kubeconfig)
        ready = cluster.ready()
    except (OSError, subprocess.SubprocessError, LookupError) as error:
        return f"{kubeconfig}: {error}"
    return cluster if ready else f"the cluster of {kubeconfig} is not ready"


def view(kubeconfig: Path) -> Cluster:
    """The cluster as the user of a kubeconfig with a token sees it."""
    shown = kubectl(
        "--kubeconfig", str(kubeconfig), "config", "view", "--raw", "--minify", "-o", "json"
    )
    config = json.loads(shown)
    cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
    authority = base64.b64decode(cluster["certificate-authority-data"]).decode()
    tls = ssl.create_default_context(cadata=authority)
    return Cluster(kubeconfig, cluster["server"], user["token"], tls)


def kubectl(*arguments: str) -> str:
    """Run kubectl as the administrator and return its stdout. Raises CalledProcessError if it fails."""
    return _run("kubectl", *arguments)


def _run(*arguments: str) -> str:
    argv = [str(SCRIPT), *arguments]
    try:
        return subprocess.run(argv, capture_output=True, text=True, timeout=120, check=True).stdout
    except subprocess.CalledProcessError as error:
        raise error from RuntimeError(error.stderr)


def _api_error(error: urllib.error.HTTPError) -> ApiError:
    output = error.read().decode(errors="replace")
    try:
        status = json.loads(output)
        return ApiError(error.code, status.get("reason", ""), status.get("message", output))
    except (ValueError, AttributeError):
        return ApiError(error.code, error.reason, output)
