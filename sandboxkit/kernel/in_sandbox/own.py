"""A small kernel: one Python process that runs all cells, for sandboxes without ipykernel.

It reads requests from a socket and writes messages to a pipe. The code prints to descriptors 1 and
2, which the kernel's holder reads. It uses the standard library only.
"""

from __future__ import annotations
import __future__

import array
import ast
import base64
import builtins
import contextlib
import errno
import gc
import io
import json
import linecache
import os
import signal
import socket
import sys
import threading
import time
import traceback
import types
import warnings
from collections.abc import Iterator
from typing import Any

from sandboxkit.kernel.in_sandbox.pipe import PipeWriter, read_before_children, text_of

KINDS = (
    ("text/html", "_repr_html_"),
    ("image/png", "_repr_png_"),
    ("image/jpeg", "_repr_jpeg_"),
    ("image/svg+xml", "_repr_svg_"),
    ("text/markdown", "_repr_markdown_"),
    ("text/latex", "_repr_latex_"),
    ("application/json", "_repr_json_"),
)
FUTURE = 0
for _name in __future__.all_feature_names:
    FUTURE |= getattr(__future__, _name).compiler_flag
COROUTINE = 0x80


class CellRunner:
    """Runs cells in one namespace, which persists between cells."""

    def __init__(self, requests: int, messages: int) -> None:
        module = types.ModuleType("__main__")
        module.__dict__["__builtins__"] = builtins
        sys.modules["__main__"] = module
        self.names: dict[str, Any] = module.__dict__
        self.names["display"] = self.display
        self.requests, self.process = socket.socket(fileno=requests), os.getpid()
        self.descriptors = array.array("i")
        self.messages, out, err = PipeWriter(messages), PipeWriter(1), PipeWriter(2)
        self.pipes = (self.messages, out, err)
        for pipe in self.pipes:
            pipe.others = [each for each in self.pipes if each is not pipe]
        read_before_children(self.pipes)
        sys.stdout = sys.__stdout__ = text_of(out)  # type: ignore[misc]  # one may
        sys.stderr = sys.__stderr__ = text_of(err)  # type: ignore[misc]
        self.sending = threading.RLock()
        self.flags = getattr(ast, "PyCF_ALLOW_TOP_LEVEL_AWAIT", 0)
        self.token, self.limit, self.count = "", 1 << 20, 0
        self.failed: BaseException | None = None
        self.loop: Any = None
        self.inherited: list[Any] = []
        self.flush_c: Any = None
        with contextlib.suppress(Exception):
            import ctypes

            self.flush_c = ctypes.CDLL(None).fflush

    def serve(self) -> None:
        """Run cells until the requests end."""
        signal.signal(signal.SIGINT, unheeded)
        self.send("ready")
        for request in self.read_requests():
            if "fork" in request:
                self.fork(request)
                continue
            self.token, self.limit = request["token"], request["limit"]
            error = self.cell(request["code"])
            if os.getpid() != self.process:
                os._exit(0)  # a process that the cell forked, at the end of the cell
            self.send("done", error=error, count=self.count)
        os._exit(0)

    def read_requests(self) -> Iterator[dict[str, Any]]:
        """Yield requests until the holder closes the socket; collect the descriptors that come with them."""
        read = bytearray()
        while True:
            data, parts, _, _ = self.requests.recvmsg(1 << 16, 1 << 10, socket.MSG_CMSG_CLOEXEC)
            for _, _, found in parts:
                self.descriptors.frombytes(found)
            if not data:
                return
            read += data
            if b"\n" in data:
                *lines, read = read.split(b"\n")
                yield from map(json.loads, lines)

    def fork(self, request: dict[str, Any]) -> None:
        """Fork this process. The fork continues here too, with connections of its own.

        The process between the two ends at once, which leaves the fork to the holder.
        """
        ends, self.descriptors = self.descriptors, array.array("i")
        why = self.unforkable()
        refused = bool(why)
        if len(ends) <= len(self.pipes):
            why = why or os.strerror(errno.EMFILE)
        gc.freeze()  # a collection in the fork would write to all inherited objects, and so copy them
        try:
            if not why:
                import ctypes  # noqa: F401 - for all forks, which rewrite their mark with it

                between = os.fork()
                if between == 0:
                    return self.become_fork(request["marks"], ends)
                with contextlib.suppress(ChildProcessError):  # if the code ignores SIGCHLD
                    status = os.waitpid(between, 0)[1]
                    why = os.strerror(os.WEXITSTATUS(status)) if status else ""
        except Exception as error:  # noqa: BLE001 - also those of the code's own hooks
            why = f"{type(error).__name__}: {error}"
        gc.unfreeze()
        if why:
            self.send("unforked", fork=request["fork"], why=why, refused=refused)
        for end in ends:  # after the message: when they are closed, the holder gives the fork up
            os.close(end)

    def unforkable(self) -> str:
        """Return why this process must not be forked now, or nothing."""
        if len(sys._current_frames()) > 1:
            others = [each.name for each in threading.enumerate()]
            names = ", ".join(each for each in others if each != threading.main_thread().name)
            return f"a fork would lack the other threads ({names or 'unnamed'}): end them before"
        if self.loop is not None and sys.modules["asyncio"].all_tasks(self.loop):
            return "a fork would lack the unfinished tasks of the event loop: await or cancel them before"
        return ""

    def become_fork(self, marks: list[str], ends: array.array[int]) -> None:
        """Leave the parent, replace its connections and its mark, and report to the holder."""
        try:
            between = os.getpid()
            if os.fork():
                os._exit(0)
            os.setsid()
            while os.getppid() == between:
                time.sleep(0.0001)
            old = [self.requests.fileno(), *(pipe.kept for pipe in self.pipes)]
            links = [os.readlink(f"/proc/self/fd/{each}") for each in old]
            new = dict(zip(links, ends))  # noqa: B905 - Python 3.8
            for name in os.listdir("/proc/self/fd"):  # duplicates of the code's own as well
                with contextlib.suppress(OSError):
                    number = int(name)
                    if end := new.get(os.readlink(f"/proc/self/fd/{name}")):
                        os.dup2(end, number, os.get_inheritable(number))
            for end in ends:
                os.close(end)
            self.rewrite_mark(*marks)
            self.process, self.token = os.getpid(), ""
            if self.loop is not None:
                self.inherited.append(self.loop)  # its end would change the parent's set of epoll
                self.loop = None
                sys.modules["asyncio"].set_event_loop(None)
            self.send("ready", pid=self.process)
        except OSError as error:
            os._exit(error.errno or 1)
        except BaseException:  # noqa: BLE001 - the process is neither the parent nor yet a kernel
            os._exit(1)

    def rewrite_mark(self, old: str, new: str) -> None:
        """Replace the mark by which the holder finds a kernel's processes, for this and later ones."""
        name, _, value = new.partition("=")
        os.environ[name] = value
        with open("/proc/self/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        start, end = int(fields[47]), int(fields[48])  # env_start, env_end; see proc(5)
        ctypes = sys.modules["ctypes"]
        place = ctypes.string_at(start, end - start).index(old.encode())
        ctypes.memmove(start + place, new.encode(), len(new))

    def cell(self, code: str) -> dict[str, str] | None:
        """Run one cell; return a description of its error, or None."""
        self.count += 1
        error: BaseException | None = None
        self.failed = None
        described: dict[str, str] | None = None
        try:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            try:
                self.execute(code, f"<cell {self.count}>")
            except BaseException as raised:  # noqa: BLE001 - any error is the cell's
                error = raised
            self.settle()
            error = error or self.failed
            if error is not None:
                described = self.described(error)
        except BaseException as raised:  # noqa: BLE001 - an interrupt during these steps
            error = error or raised
        while signal.getsignal(signal.SIGINT) is not unheeded:
            with contextlib.suppress(KeyboardInterrupt):
                signal.signal(signal.SIGINT, unheeded)
        if error is not None and described is None:
            described = {"name": type(error).__name__, "message": "", "traceback": ""}
        return described

    def execute(self, code: str, name: str) -> None:
        """Run the code, and show the value of its last statement if that is an expression."""
        lines = [line + "\n" for line in code.split("\n")]
        linecache.cache[name] = (len(code), None, lines, name)
        tree = compile(code, name, "exec", ast.PyCF_ONLY_AST | self.flags, True)
        assert isinstance(tree, ast.Module)
        end = tree.body[-1] if tree.body else None
        last = None
        if isinstance(end, ast.Expr) and not code.rstrip().endswith(";"):
            last = ast.Expression(end.value)
            del tree.body[-1]
        self.evaluate(compile(tree, name, "exec", self.flags, True))
        if last is None:
            return
        value = self.evaluate(compile(last, name, "eval", self.flags, True))
        if value is not None:
            self.names["_"] = value
            self.show("result", value)

    def evaluate(self, code: types.CodeType) -> Any:
        """Return the value of compiled code, which may contain top-level `await`."""
        self.flags |= code.co_flags & FUTURE
        value = eval(code, self.names)
        if not code.co_flags & COROUTINE:
            return value
        import asyncio

        if self.loop is None:
            self.loop = asyncio.new_event_loop()
            asyncio.set_event_loop(self.loop)
        task = self.loop.create_task(value)
        try:
            return self.loop.run_until_complete(task)
        except KeyboardInterrupt:
            task.cancel()
            with contextlib.suppress(BaseException):
                self.loop.run_until_complete(task)
            raise

    def settle(self) -> None:
        """At the end of a cell, show open figures and flush buffered text."""
        pyplot = sys.modules.get("matplotlib.pyplot")
        if pyplot is not None:
            with self.reported():
                for number in pyplot.get_fignums():
                    self.show("display", pyplot.figure(number))
                pyplot.close("all")
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        if self.flush_c is not None:
            self.flush_c(None)

    def display(self, *values: Any, **ignored: object) -> None:
        """Show values; code in cells calls it, as IPython's `display`."""
        for value in values:
            self.show("display", value)

    def show(self, kind: str, value: Any) -> None:
        """Send all representations of a value within the size limit."""
        data: dict[str, Any] = {}
        with self.reported():
            data["text/plain"] = repr(value)
        if not isinstance(value, type) and not hasattr(value, "_no_such_representation_"):
            self.represent(value, data)
        cut = len(data.get("text/plain", "")) > self.limit
        if cut:
            data["text/plain"] = data["text/plain"][: self.limit]
        for name in [name for name in data if name != "text/plain"]:
            size = self.limit + 1
            with self.reported():
                size = len(json.dumps(data[name]))
            if size > self.limit:
                del data[name]
                cut = True
        self.send(kind, data=data, cut=cut)

    def represent(self, value: Any, data: dict[str, Any]) -> None:
        """Add every representation of a value except the plain text to `data`, by media type."""
        for name, method in KINDS:
            with self.reported():
                found = getattr(value, method, None)
                given: Any = found() if callable(found) else None
                given = given[0] if isinstance(given, tuple) else given
                if given is not None:
                    data[name] = encoded(given)
        with self.reported():
            found = getattr(value, "_repr_mimebundle_", None)
            given = found(include=None, exclude=None) if callable(found) else None
            given = given[0] if isinstance(given, tuple) else given
            for name, each in dict(given or {}).items():
                data[str(name)] = encoded(each)
        figure = getattr(sys.modules.get("matplotlib.figure"), "Figure", None)
        if figure is not None and isinstance(value, figure):
            with self.reported():
                picture = io.BytesIO()
                value.savefig(picture, format="png", bbox_inches="tight")
                data["image/png"] = encoded(picture.getvalue())
        if type(value) in (dict, list) and len(data.get("text/plain", "")) <= self.limit:
            with contextlib.suppress(Exception):
                if json.loads(json.dumps(value, allow_nan=False)) == value:
                    data.setdefault("application/json", value)

    @contextlib.contextmanager
    def reported(self) -> Any:
        """Record an error in a representation as the cell's error, and continue."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - the user's methods may raise anything
            self.failed = self.failed or error

    def described(self, error: BaseException) -> dict[str, str]:
        """Return name, message and traceback of an error; the traceback begins at the cell's lines."""
        steps = error.__traceback__
        while steps is not None and not steps.tb_frame.f_code.co_filename.startswith("<cell "):
            steps = steps.tb_next
        name, message, lines = type(error).__name__, "", ""
        with contextlib.suppress(Exception):
            message = str(error)
        with contextlib.suppress(Exception):
            lines = "".join(traceback.format_exception(type(error), error, steps))
        half = self.limit // 2
        return {
            "name": name,
            "message": message[:half],
            "traceback": lines if len(lines) <= half else lines[: half // 2] + lines[-half // 2 :],
        }

    def send(self, kind: str, **fields: Any) -> None:
        """Send a message to the holder, after all earlier output."""
        text = json.dumps({"say": kind, **fields}, default=str)
        with self.sending:
            self.messages.write(f"\n{self.token} {text}\n".encode())


def unheeded(number: int, frame: object) -> None:
    """Ignore SIGINT between cells."""


def encoded(given: Any) -> Any:
    """Return bytes as base64 text; return any other value unchanged."""
    if isinstance(given, (bytes, bytearray, memoryview)):
        return base64.b64encode(given).decode()
    return given


def main(messages: int) -> None:
    """Run the kernel. Its standard input was the socket for requests; the code's is empty."""
    requests = os.dup(0)  # child processes do not inherit it
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.set_inheritable(messages, False)
    with contextlib.suppress(Exception):
        import faulthandler

        faulthandler.enable(2)
    os.environ.setdefault("MPLBACKEND", "Agg")
    warnings.filterwarnings("ignore", message="FigureCanvasAgg is non-interactive")
    sys.argv = [""]
    sys.path.insert(0, "")
    CellRunner(requests, messages).serve()
