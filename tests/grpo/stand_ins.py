"""Servers of stand_in.py, in processes of their own. Needs no torch here."""

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass
class Served:
    """One on this machine, in a process of its own, of which each start has the same url."""

    nursery: "subprocess.Popen[str]"
    port: int
    pid: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        assert self.nursery.stdin is not None
        assert self.nursery.stdout is not None
        self.nursery.stdin.write(f"{self.port}\n")
        self.nursery.stdin.flush()
        self.pid = int(self.nursery.stdout.readline())

    def wait(self) -> None:
        """Until it answers."""
        deadline = time.monotonic() + 120
        while True:
            try:
                with urllib.request.urlopen(f"{self.url}/v1/models", timeout=5):
                    return
            except (urllib.error.URLError, OSError):
                pass
            assert time.monotonic() < deadline
            time.sleep(0.05)

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        """At once, and return when it is gone."""
        deadline = time.monotonic() + 30
        with contextlib.suppress(ProcessLookupError):
            while self.pid and time.monotonic() < deadline:
                os.kill(self.pid, signal.SIGKILL)
                time.sleep(0.01)
        self.pid = 0


@contextlib.contextmanager
def serving(count: int, folder: Path, stop: int) -> Iterator[list[Served]]:
    """So many, that answer; killed at the end."""
    with nursery_of(folder, stop) as nursery:
        made = [Served(nursery, free_port()) for _ in range(count)]
        try:
            for each in made:
                each.start()
            for each in made:
                each.wait()
            yield made
        finally:
            for each in made:
                each.kill()
            nursery.kill()


def nursery_of(folder: Path, stop: int) -> "subprocess.Popen[str]":
    """The process that they are forked from; it ends when its input does, or is killed."""
    command = [sys.executable, "-m", "tests.grpo.stand_in", str(folder), str(stop)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)


def free_port() -> int:
    """A port on which nobody listens, below those that the kernel gives to whoever asks for any."""
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        port = random.randrange(lowest // 2, lowest)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
