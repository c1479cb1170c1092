"""Run trusted tests against proxies of a remote submission. Runs in the judge's sandbox.

The first line on stdin is the job. Each line on the original stdout is a request to the subject
("S"), a request to the subject's machine ("H": run a program, read a file) or the results ("D").
Each request gets one line as its response on stdin.
"""

from __future__ import annotations

import builtins
import importlib
import json
import os
import resource
import sys
import tempfile
import threading
import traceback
import types
from typing import Any  # Any: JSON, and the tests' names

from sandboxkit.integrations.rewards._in_sandbox.connection import Connection, SubjectFailed
from sandboxkit.integrations.rewards._in_sandbox.sources import CALL, compiled

_TEXT = 500
_SHOWN = (bool, float, int, str, type(None))


class TestNamespace(dict[str, Any]):
    """The globals of the tests. Listed names come from the submission or the standard library."""

    def __init__(self, connection: Connection, listed: list[str], modules: list[str]) -> None:
        super().__init__(__name__="tests", __builtins__=builtins)
        self[CALL] = connection.discarded
        self._connection, self._listed, self._modules = connection, set(listed), set(modules)

    def __missing__(self, name: str) -> Any:
        if name in self._listed:
            try:
                return self._connection.get(name)
            except AttributeError:
                raise KeyError(name) from None
        if name in self._modules:
            return importlib.import_module(name)
        raise KeyError(name)


class Own(types.ModuleType):
    """The module `tests`, in which the tests run; their classes have its name as `__module__`."""

    def __init__(self, names: TestNamespace) -> None:
        super().__init__("tests")
        self._names = names

    def __getattribute__(self, name: str) -> Any:
        if name == "__dict__":
            return object.__getattribute__(self, "_names")
        return object.__getattribute__(self, name)


class SubmissionModule(types.ModuleType):
    """The module that `import solution` returns in the tests. Its attributes are the submission's."""

    def __init__(self, name: str, connection: Connection, own: list[str]) -> None:
        super().__init__(name)
        self.__dict__.update(_connection=connection, _own={*own, *dir(builtins)})

    def __getattr__(self, name: str) -> Any:
        if name == "__all__":  # never a name that the tests define, or a module
            kept = {*self._own, *sys.stdlib_module_names}
            return [each for each in self._connection.names() if each not in kept]
        if name.startswith("__"):
            raise AttributeError(name)
        return self._connection.get(name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("__"):
            super().__setattr__(name, value)  # the import system's
        else:
            self._connection.set(name, value)

    def __delattr__(self, name: str) -> None:
        self._connection.set(name)


class SubjectMachine(types.ModuleType):
    """The module that `import subject` returns: access to programs and files of the subject's sandbox."""

    def __init__(self, exchange: Any, connection: Connection) -> None:
        super().__init__("subject")
        self.__dict__.update(_exchange=exchange, _connection=connection)

    def load(self, module: str, folder: str = "/workspace") -> Any:
        """Import a module from `folder` in a process of the subject's sandbox; return a proxy for it."""
        return self._connection.load(module, folder)

    def run(
        self,
        argv: list[str],
        *,
        stdin: str = "",
        cwd: str = "/workspace",
        timeout: float = 30.0,
        env: dict[str, str] | None = None,
    ) -> tuple[int, str]:
        """Run a program; return its exit status and standard output.

        Raises TimeoutError after `timeout` seconds of CPU time, FileNotFoundError or OSError.
        """
        answer = self._request("run", list(argv), stdin, cwd, timeout, env or {})
        return answer[0], answer[1]

    def read_file(self, path: str, max_bytes: int = 1 << 20) -> bytes:
        """Return the content of a regular file. Raises FileNotFoundError or OSError."""
        return bytes.fromhex(self._request("read", path, max_bytes))

    def write_file(self, path: str, data: bytes | str) -> None:
        """Write a file. Raises OSError."""
        content = data.encode() if isinstance(data, str) else data
        self._request("write", path, content.hex())

    def remove(self, path: str) -> None:
        """Remove a file or a tree; a missing one is no error. Raises OSError."""
        self._request("remove", path)

    def _request(self, what: str, *arguments: Any) -> Any:
        answer = self._exchange("H", [what, *arguments])
        if answer[0] == "error":
            raise {"FileNotFoundError": FileNotFoundError, "TimeoutError": TimeoutError}.get(
                answer[1], OSError
            )(answer[2])
        return answer[1]


class Judge:
    """One grading job: the tests and their results."""

    def __init__(self, lines: Any, channel: int) -> None:
        self._lines, self._channel = lines, channel
        self._lock = threading.RLock()  # tests may have threads

    def send(self, kind: str, value: Any) -> None:
        """Send one line to the host."""
        data = kind.encode() + json.dumps(value).encode() + b"\n"
        while data:
            data = data[os.write(self._channel, data) :]

    def _exchange(self, kind: str, value: Any) -> Any:
        with self._lock:
            self.send(kind, value)
            line = self._lines.readline()
        try:
            return json.loads(line)
        except (ValueError, RecursionError):
            raise SubjectFailed("tampered", "the answer is not one JSON value") from None

    def judge(self, job: Any) -> list[Any]:
        """Run the tests; return [outcome, detail] of each, in order, up to the first failure."""
        connection = Connection(lambda request: self._exchange("S", request), job)
        sys.modules[job["module"]] = SubmissionModule(job["module"], connection, job["own"])
        sys.modules["subject"] = SubjectMachine(self._exchange, connection)
        names = TestNamespace(connection, job["names"], job["modules"])
        sys.modules["tests"] = Own(names)
        results = []
        if job["live"]:
            error = _problem(connection, connection.begin)
            if error is not None:
                return [error]
        error = _problem(connection, lambda: exec(compiled(job["setup"], "setup.py"), names))
        if error is not None:
            return [error]
        for number, source in enumerate(job["tests"]):
            code = compiled(source, f"test{number}.py")
            error = _problem(connection, lambda: exec(code, names))  # noqa: B023 - called at once
            if error is None and job["call"]:
                for call in job["call"]:
                    error = _problem(connection, lambda: eval(call, names))  # noqa: B023
                    if error is not None:
                        break
            results.append(error or ["passed", ""])
            if error is not None:
                break
        return results


def _problem(connection: Connection, work: Any) -> list[str] | None:
    found = None
    try:
        work()
    except MemoryError:
        found = ["oom", "the tests ran out of memory on the values that the submission returned"]
    except BaseException as error:  # noqa: BLE001 - every exception fails the test
        found = ["failed", _shown(error)]
    failure = connection.failure
    return [failure.outcome, failure.detail] if failure else found


def _shown(error: BaseException) -> str:
    """Return the test's failed line and the exception's text, without calling the submission's objects."""
    text = ", ".join(str(each) for each in error.args if type(each) in _SHOWN)
    frames = [each for each in traceback.extract_tb(error.__traceback__) if "test" in each.filename]
    where = f"line {frames[-1].lineno}: " if frames else ""
    return f"{where}{type(error).__name__}: {text}"[:_TEXT]


def main() -> None:
    """Run the job on stdin, send the results and exit the process."""
    lines, channel = os.fdopen(os.dup(0), "rb"), os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    job = json.loads(lines.readline())
    seconds, memory = job["seconds"], job["memory"]
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 5))
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    judge = Judge(lines, channel)
    if job["folder"]:
        sys.path.insert(0, os.getcwd())
        results = judge.judge(job)
    else:  # the sandbox is kept for later judges, and other judges run in it now
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            os.chdir(folder)
            results = judge.judge(job)
    judge.send("D", results)
    os._exit(0)


if __name__ == "__main__":
    main()
