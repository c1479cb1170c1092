"""Run tests in forks of the process that loaded the submission. Runs in a sandbox.

There are three kinds of process. The keeper never runs the submission, and the submission cannot
read or trace it. Only the keeper has the token that makes a result valid. It forks the subject, which
loads the submission and then restores the interpreter's state; only then does the keeper read the
tests. For each test the subject forks a process, which reads the test and a secret number from a pipe.
The number in its report proves that the test finished.

This is not safe against a submission that reads its caller's frames, because a test and the
submission share one process. Direct access to frames is detected; access through tracebacks is not.
"""

from __future__ import annotations

import builtins
import ctypes
import fcntl
import json
import marshal
import os
import random
import resource
import signal
import sys
import traceback
import types
from collections.abc import Callable
from typing import Any  # Any: JSON, and values of tests and submissions

from sandboxkit.integrations.rewards._in_sandbox.comparison_guard import ComparisonGuard, is_library
from sandboxkit.integrations.rewards._in_sandbox.pristine import Pristine
from sandboxkit.integrations.rewards._in_sandbox.rewritten import compiled
from sandboxkit.integrations.rewards._in_sandbox.submission import send, take_channel

_HEAD = 10
_MOST = 1 << 16
_TEXT = 500
_PR_SET_DUMPABLE, _PR_SET_CHILD_SUBREAPER = 4, 36
_WATCHED = ("sys.", "gc.get_", "ctypes.", "code.")
_REPORTS = ("sys.excepthook", "sys.unraisablehook")
_ASK_FOR_OTHERS = (f"{os.sep}inspect.py", f"{os.sep}traceback.py")


def frame(descriptor: int) -> Any:
    """Read one length-prefixed JSON value from a descriptor, and no byte beyond it."""
    return json.loads(_exactly(descriptor, int(_exactly(descriptor, _HEAD))))


def _framed(value: Any) -> bytes:
    data = json.dumps(value).encode()
    return b"%0*d" % (_HEAD, len(data)) + data


def _write(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def _exactly(descriptor: int, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = os.read(descriptor, size - len(data))
        if not more:
            os._exit(1)
        data += more
    return data


class InterpreterWatch:
    """An audit hook that records the submission's access to interpreter internals."""

    def __init__(self) -> None:
        self.found: list[str] = []
        self.own = ""
        self._asking = False

    def begin(self) -> None:
        """Install the hook; it cannot be removed."""
        register = os.register_at_fork

        def registered(**hooks: Any) -> None:
            self._look("os.register_at_fork")
            register(**hooks)

        os.register_at_fork = registered
        sys.modules["posix"].register_at_fork = registered  # type: ignore[attr-defined]
        for name in ("memmove", "memset", "_memmove_addr", "_memset_addr"):
            delattr(ctypes, name)
        sys.addaudithook(self._hook)

    def _hook(self, event: str, args: Any) -> None:
        if event.startswith(_WATCHED) and event not in _REPORTS and not self._asking:
            self._look(event)

    def _look(self, event: str) -> None:
        self._asking = True
        asker: Any = sys._getframe(2)
        while asker is not None and asker.f_code.co_filename.endswith(_ASK_FOR_OTHERS):
            asker = asker.f_back
        self._asking = False
        place = asker.f_code.co_filename if asker is not None else ""
        if not (is_library(place) or place == self.own) or event == "ctypes.dlsym":
            self.found.append(event)


def subject(job: Any, down: int, up: int) -> None:
    """Load the submission, then fork a process for each test that the keeper sends. Never returns.

    `down` and `up` are the descriptors of the pipes from and to the keeper.
    """
    for name in job["imports"]:
        try:
            __import__(name)
        except ImportError:
            continue  # the test that imports it will fail
    module = types.ModuleType(job["module"])
    # Else the caller's would apply, which in a warm interpreter are a copy that patches do not reach.
    vars(module)["__builtins__"] = vars(builtins)
    pristine, watch = Pristine(), InterpreterWatch()
    watch.begin()
    outcome = _tried(lambda: _load(module, job["code"]))
    pristine.restore()
    sys.modules[job["module"]] = module
    if len(os.listdir("/proc/self/task")) > 1:
        outcome = outcome or ["tampered", "the submission left a thread running"]
    send(up, ["loaded", *(_found_out(watch, pristine) or outcome or ["passed", ""])])
    while os.read(down, 1):
        child = os.fork()
        if child == 0:
            send(up, ["test", *test(frame(down), module, watch, pristine)])
            os._exit(0)
        send(up, ["ended", os.waitpid(child, 0)[1]])
    os._exit(0)


def _load(module: types.ModuleType, code: str) -> None:
    sys.modules[module.__name__] = module
    path = module.__file__ = os.path.join(os.getcwd(), f"{module.__name__}.py")
    try:
        exec(compile(code.lstrip("\ufeff"), path, "exec", dont_inherit=True), vars(module))
    except SystemExit as end:  # programs may call sys.exit() at their end
        if end.code not in (None, 0):
            raise


def test(
    task: Any, module: types.ModuleType, watch: InterpreterWatch, pristine: Pristine
) -> list[Any]:
    """Run one test; return its number, its outcome ("passed", "failed", ...) and a detail."""
    names, own = vars(module), task["file"]
    failures: list[Any] = []

    def fail(text: Any = "") -> None:
        failures.append(text)
        raise AssertionError(text)

    tests = types.ModuleType("tests")
    space = vars(tests)
    guard = ComparisonGuard(own, task["operators"])
    space.update(__file__=own, __builtins__=vars(builtins))
    space.update(__failed__=fail, __compared__=guard.compare, __entered__=guard.entered)
    sys.modules["tests"] = tests
    watch.own = own

    def run() -> None:
        for name in task["names"]:
            if name in names:
                space[name] = names[name]
            elif name in task["modules"]:
                space[name] = __import__(name)
        for code in task["codes"]:
            exec(marshal.loads(bytes.fromhex(code)), space)
        if failures:
            raise AssertionError(*failures)

    outcome = _catching(task["used"], names) or _tried(run, own)
    pristine.restore()
    return [task["number"], *(_found_out(watch, pristine) or outcome or ["passed", ""])]


def _found_out(watch: InterpreterWatch, pristine: Pristine) -> list[str] | None:
    if not pristine.is_sound():
        return ["tampered", "the submission changed constants of the interpreter"]
    return ["tampered", f"the submission used {watch.found[0]}"] if watch.found else None


def _catching(used: list[str], names: dict[str, Any]) -> list[str] | None:
    """Return an outcome if a name of the submission is a class that catches failed assertions, else None."""
    for name in used:
        value = names.get(name)
        for each in value if type(value) is tuple else (value,):
            if any(each is kind for kind in (AssertionError, Exception, BaseException)):
                return ["tampered", f"{name} would catch the assertions of the tests"]
    return None


def _tried(work: Callable[[], Any], own: str = "") -> list[str] | None:
    try:
        work()
    except MemoryError:
        return ["oom", "MemoryError"]
    except BaseException as error:  # noqa: BLE001 - every exception fails the test
        places = traceback.extract_tb(error.__traceback__)
        found = [each.lineno for each in places if each.filename == own]
        where = f"line {found[-1]}: " if found else "" if own else "while loading: "
        plain = ", ".join(str(each) for each in error.args if type(each) in (str, int, float))
        return ["failed", f"{where}{type(error).__name__}: {plain}"[:_TEXT]]
    return None


class SubjectTestRunner:
    """Run tests in the subject, one after another; accept only reports with the test's number."""

    def __init__(self, subject: int, down: int, up: int) -> None:
        self._subject, self._down, self._up = subject, down, up
        self._rest = b""

    def results(self, tests: Callable[[], Any]) -> list[Any]:
        """Return [outcome, detail] of each test; stop after the first failure."""
        loaded = self._line()
        if loaded[:1] != ["loaded"] or loaded[1:2] != ["passed"]:
            return [self._failure(loaded[1:])]
        results: list[Any] = []
        for task in tests():
            self._end_others()
            number = os.urandom(16).hex()
            _write(self._down, b"t" + _framed({**_compiled(task), "number": number}))
            line = self._line()
            if line[:3] == ["test", number, "passed"] and self._line() == ["ended", 0]:
                results.append(["passed", ""])
            elif line[:2] == ["test", number]:
                return [*results, self._failure(line[2:])]
            else:
                return [*results, self._failure(line)]
        return results

    def _failure(self, report: list[Any]) -> list[str]:
        if len(report) == 2 and report[0] in ("failed", "oom", "tampered"):
            return [report[0], str(report[1])[:_TEXT]]
        status = report[1] if report[:1] == ["ended"] else None
        if not report:  # the subject closed the pipe, which only its end should do
            os.kill(self._subject, signal.SIGKILL)
            status = os.waitpid(self._subject, 0)[1]
        if status == signal.SIGXCPU:
            return ["timeout", "exceeded its CPU time limit"]
        return ["failed", "the process of the tests ended before the test did"]

    def _line(self) -> list[Any]:
        while b"\n" not in self._rest and len(self._rest) < _MOST:
            more = os.read(self._up, _MOST)
            if not more:
                return []
            self._rest += more
        line, _, self._rest = self._rest.partition(b"\n")
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            return []
        return value if isinstance(value, list) else []

    def _end_others(self) -> None:
        """Kill processes that the submission left running: they could read the next test's input."""
        while others := _descendants() - {self._subject}:
            for each in others:
                try:
                    os.kill(each, signal.SIGKILL)
                    os.waitpid(each, 0)
                except (ProcessLookupError, ChildProcessError):
                    continue  # it has ended, or is the child of another one


def _compiled(task: Any) -> Any:
    """Compile a test under a random file name that the submission cannot know."""
    file = f"test-{os.urandom(8).hex()}.py"
    codes = [compiled(each, file, task["module"]) for each in task["sources"]]
    if task["call"]:
        codes.append(compiled(task["call"], file, task["module"]))
    rest = {name: task[name] for name in ("names", "modules", "used", "operators")}
    return {**rest, "file": file, "codes": [marshal.dumps(each).hex() for each in codes]}


def _descendants() -> set[int]:
    parents: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                state, parent = file.read().rpartition(b")")[2].split()[:2]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if state not in b"ZX":
            parents[int(name)] = int(parent)
    found: set[int] = set()
    more = {os.getpid()}
    while more:
        more = {each for each, parent in parents.items() if parent in more} - found
        found |= more
    return found


def main() -> None:
    """Run the job from stdin and write the token and the results as one line."""
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    lines, channel = take_channel()
    source = os.dup(lines.fileno())
    job = frame(source)
    resource.setrlimit(resource.RLIMIT_CPU, tuple(job["seconds"]))
    (down, down_end), (up_end, up) = os.pipe(), os.pipe()
    number = os.fork()
    if number == 0:
        lowest = [random.SystemRandom().randrange(64, 900) for _ in range(2)]
        kept = [
            fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, least)
            for end, least in zip((down, up), lowest)  # noqa: B905 - Python 3.8
        ]
        lines.close()
        for each in (source, channel, down, down_end, up, up_end):
            os.close(each)
        subject(job, *kept)
    os.close(down)
    os.close(up)
    token: list[str] = []

    def tests() -> list[Any]:
        rest = frame(source)
        token.append(rest["token"])
        return list(rest["tests"])

    results = SubjectTestRunner(number, down_end, up_end).results(tests)
    send(channel, {"token": "".join(token), "results": results})
    os._exit(0)


if __name__ == "__main__":
    main()
