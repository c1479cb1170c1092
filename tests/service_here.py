"""`sandboxkit serve` in a process of its own, for tests of its clients."""

import contextlib
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass
class Service:
    """A running service."""

    url: str
    process: subprocess.Popen[str]
    tag: str = ""
    """The tag of its sandboxes, if the test gave it one."""


@contextlib.contextmanager
def service(provider: str, *arguments: str) -> Iterator[Service]:
    """Run a service on a free port; it is ended with the context, if it still runs."""
    command = [sys.executable, "-m", "sandboxkit", "serve", "-p", provider, "--port", "0"]
    command += ["--pool", "0", "--sandboxes", "500", *arguments]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        lines = iter(process.stderr)
        words = (word for line in lines for word in line.split())
        url = next((word for word in words if word.startswith("http://")), None)
        assert url is not None, f"the service ended with status {process.wait()}"
        reader = threading.Thread(target=lambda: sys.stdout.writelines(lines))
        reader.start()  # a full pipe would stop the service
        try:
            yield Service(url, process)
        finally:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
            reader.join()
