"""Runs inside a sandbox, alone on the standard library: a login shell on a terminal.

Standard input carries frames, a kind and a length before each: "i" input, "z" a new size. What
the terminal says goes to standard output as it is; the shell's exit status is ours.
"""

import fcntl
import os
import pty
import struct
import sys
import termios
import threading

HEADER = struct.Struct(">cI")


def resize(terminal: int, rows: int, cols: int) -> None:
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, cols, 0, 0))


def take_orders(terminal: int) -> None:
    with open(0, "rb") as orders:
        while header := orders.read(HEADER.size):
            kind, size = HEADER.unpack(header)
            data = orders.read(size)
            if kind == b"z":
                resize(terminal, *struct.unpack(">HH", data))
            while kind == b"i" and data:
                try:
                    data = data[os.write(terminal, data) :]
                except OSError:
                    break


def speak(terminal: int) -> None:
    while True:
        try:
            data = os.read(terminal, 32768)
        except OSError:
            return
        while data:
            data = data[os.write(1, data) :]


pid, terminal = pty.fork()
if pid == 0:
    os.execvp("bash", ["bash", "-i", "-l"])
resize(terminal, int(sys.argv[1]), int(sys.argv[2]))
for work in (take_orders, speak):
    threading.Thread(target=work, args=(terminal,), daemon=True).start()
code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
os._exit(code if code >= 0 else 255)
