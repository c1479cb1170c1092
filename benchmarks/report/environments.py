"""An environment of its own for each peer, made when it is first needed: pinned versions only."""

import subprocess
import sys
from pathlib import Path

PEERS = Path(sys.prefix) / "peers"
REQUIREMENTS = Path(__file__).resolve().parent.parent / "sides" / "requirements"


class NoEnvironmentError(Exception):
    """A peer could not be installed: it is left out, and the report says so."""


def python(peer: str | None) -> Path:
    """The interpreter of a peer's environment, or this one for None.

    Raises NoEnvironmentError.
    """
    if peer is None:
        return Path(sys.executable)
    wanted, folder = REQUIREMENTS / f"{peer}.txt", PEERS / peer
    ready, interpreter = folder / ".ready", folder / "bin" / "python"
    if ready.is_file() and ready.read_text() == wanted.read_text():
        return interpreter
    for argv in (
        [sys.executable, "-m", "venv", "--clear", "--without-pip", str(folder)],
        [
            sys.executable,
            "-m",
            "pip",
            "--python",
            str(interpreter),
            "install",
            "-q",
            "-r",
            str(wanted),
        ],
    ):
        done = subprocess.run(argv, capture_output=True, text=True, timeout=300)
        if done.returncode:
            lines = (done.stderr or done.stdout).strip().splitlines() or [str(done.returncode)]
            raise NoEnvironmentError(f"{peer}: {lines[-1]}")
    ready.write_text(wanted.read_text())
    return interpreter
