"""The holder's connection to ipykernel: Jupyter messages over sockets without a file."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import secrets
import subprocess
import sys
import tempfile
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sandboxkit.kernel.in_sandbox.supervised import SupervisedKernel

SHOWN = ("display_data", "execute_result", "update_display_data")
AGAIN_SECONDS = 1.0
LOST_SECONDS = 5.0
"""How long (s) after the reply a cell's last message may arrive before it counts as lost."""


class Notebook:
    """Starts ipykernel and runs cells in it; the counterpart of `PipeProcess`."""

    def __init__(self, kernel: SupervisedKernel, program: str) -> None:
        self.kernel = kernel
        folder = tempfile.mkdtemp(prefix=f".sandboxkit-{kernel.mark}-")
        address, key = f"@sandboxkit-{secrets.token_hex(8)}", secrets.token_hex(16)
        names = ("shell", "iopub", "stdin", "control", "hb")
        ports = {f"{name}_port": number for number, name in enumerate(names, 1)}
        connection = {**ports, "ip": address, "transport": "ipc", "key": key}
        connection["signature_scheme"] = "hmac-sha256"
        file = os.path.join(folder, "connection.json")
        with open(file, "w") as opened:
            json.dump(connection, opened)
        argv = [sys.executable or "python3", "-m", "ipykernel_launcher", "-f", file]
        argv += ["--IPKernelApp.capture_fd_output=False", "--HistoryManager.enabled=False"]
        argv += ["--InteractiveShell.colors=NoColor", "--log-level=50"]
        theirs, self.acknowledge = os.pipe()
        for end in (theirs, self.acknowledge):
            os.set_blocking(end, False)
        env = {"IPYTHONDIR": folder}
        self.pid = kernel.spawn(argv, stdin=subprocess.DEVNULL, pass_fds=(theirs,), env=env)
        os.close(theirs)
        # Imported here, while the kernel starts and imports the same modules.
        self.zmq: Any = importlib.import_module("zmq")
        session: Any = importlib.import_module("jupyter_client.session")
        self.session = session.Session(key=key.encode())
        context = self.zmq.Context()
        self.shell, self.iopub = context.socket(self.zmq.DEALER), context.socket(self.zmq.SUB)
        self.iopub.setsockopt(self.zmq.RCVHWM, 0)
        self.iopub.setsockopt(self.zmq.SUBSCRIBE, b"")
        self.iopub.connect(f"ipc://{address}-2")
        self.shell.connect(f"ipc://{address}-1")
        self.descriptors = [
            self.shell.getsockopt(self.zmq.FD),
            self.iopub.getsockopt(self.zmq.FD),
        ]
        self.message = ""
        self.reply: Any = None
        self.raised: dict[str, Any] = {}
        self.idle, self.late = False, 0.0
        program += f"module.set_up(shell, {theirs})"
        self.set_up = f"exec({program!r}, {{'shell': get_ipython()}})"
        self.execute(self.set_up, silent=True)

    def run(self, code: str) -> None:
        """Send a cell."""
        self.execute(code, silent=False)

    def execute(self, code: str, *, silent: bool) -> None:
        content = {
            "code": code,
            "silent": silent,
            "store_history": not silent,
            "user_expressions": {},
            "allow_stdin": False,
            "stop_on_error": False,
        }
        sent = self.session.send(self.shell, "execute_request", content)
        self.message, self.reply, self.idle = sent["header"]["msg_id"], None, False
        self.raised = {}

    def write(self) -> None:
        """Do nothing: this client buffers no input."""

    def wake(self) -> None:
        """Send a message after a signal, because an awaiting cell handles SIGINT only when its event
        loop wakes."""
        self.session.send(self.shell, "kernel_info_request")

    def receive(self) -> None:
        """Handle all available messages."""
        for socket, handle in ((self.iopub, self.handle_iopub), (self.shell, self.handle_shell)):
            while True:
                try:
                    _, message = self.session.recv(socket, self.zmq.NOBLOCK)
                except (ValueError, TypeError, KeyError):
                    continue  # malformed: the cell's code sent it
                if message is None:
                    break
                handle(message["msg_type"], message["content"], message["parent_header"])
        reply, now = self.reply, time.monotonic()
        if reply is None or not (self.idle or now > self.late):
            return  # the cell's last message has yet to arrive
        self.reply = None
        if self.kernel.ready:
            failed = reply.get("status", "ok") != "ok"
            error = _error(self.raised or reply) if failed else None
            self.kernel.report_done(error, reply.get("execution_count"))
        elif self.idle:
            self.kernel.report_ready("ipykernel")
        else:
            self.execute(self.set_up, silent=True)  # "idle" came before the subscription: repeat

    def handle_iopub(self, kind: str, content: dict[str, Any], parent: dict[str, Any]) -> None:
        """Handle a message of the IOPub channel."""
        if kind == "stream" and content.get("name") in ("stdout", "stderr"):
            text = str(content["text"]).encode("utf-8", "backslashreplace")
            self.kernel.kept.printed(content["name"], text)
        elif kind in SHOWN:
            # Output printed before it has been read already; later output waits for this acknowledgement.
            shown = "result" if kind == "execute_result" else "display"
            self.kernel.kept.shown(shown, dict(content["data"]), False)
            with contextlib.suppress(OSError):
                os.write(self.acknowledge, b".")
        elif kind == "error" and parent.get("msg_id") == self.message:
            self.raised = content  # if displaying a value fails, the reply does not name the error
        elif kind == "status" and content.get("execution_state") == "idle":
            self.idle = self.idle or parent.get("msg_id") == self.message

    def handle_shell(self, kind: str, content: dict[str, Any], parent: dict[str, Any]) -> None:
        """Handle a message of the shell channel."""
        if kind == "execute_reply" and parent.get("msg_id") == self.message:
            patience = LOST_SECONDS if self.kernel.ready else AGAIN_SECONDS
            self.reply, self.late = content, time.monotonic() + patience


def _error(content: dict[str, Any]) -> dict[str, str]:
    return {
        "name": str(content.get("ename", content.get("status"))),
        "message": str(content.get("evalue", "")),
        "traceback": "\n".join(map(str, content.get("traceback", []))),
    }
