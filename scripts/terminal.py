"""Record the commands of the README's picture on a terminal, and write docs/terminal.svg."""

import fcntl
import io
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.text import Text

PICTURE = Path(__file__).resolve().parents[1] / "docs" / "terminal.svg"
COMMANDS = (
    "sandboxkit run -- python3 -c 'print(6 * 7)'",
    "sandboxkit run --memory-mb 64 -- python3 -c 'bytearray(10**9)'",
    "sandboxkit demo",
)
COLUMNS = 100


def recorded(command: str) -> str:
    """Run a command on a terminal of its own and return what is on its screen in the end."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, COLUMNS, 0, 0))
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "TERM": "xterm-256color"}
    environment["SANDBOXKIT_PROVIDER"] = "local"
    process = subprocess.Popen(
        command, shell=True, stdin=slave, stdout=slave, stderr=slave, env=environment
    )
    os.close(slave)
    output = b""
    try:
        while chunk := os.read(master, 1 << 16):
            output += chunk
    except OSError:  # every process that had the terminal has ended
        pass
    process.wait()
    os.close(master)
    lines = output.decode().replace("\r\n", "\n")
    lines = re.sub(r"[^\n]*\r\x1b\[2K", "", lines)  # progress that was drawn over
    lines = re.sub(r"\x1b\[\?25[lh]", "", lines)  # the cursor
    return "\n".join(line.rstrip() for line in lines.strip().split("\n"))


def main() -> None:
    """Write the picture. The system's own font is used: nothing comes from another server."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    for command in COMMANDS:
        console.print(Text(f"$ {command}", "bold"))
        console.print(Text.from_ansi(f"{recorded(command)}\n"))
    form = re.sub(r"@font-face \{\{.*?\}\}\n", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
    form = form.replace("Fira Code", "ui-monospace")
    svg = console.export_svg(title="sandboxkit", code_format=form, unique_id="terminal")
    PICTURE.write_text("".join(f"{line.rstrip()}\n" for line in svg.splitlines()))


if __name__ == "__main__":
    main()
