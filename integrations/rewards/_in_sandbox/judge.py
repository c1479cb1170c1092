"""Run tests that call a submission elsewhere, with plain data. Runs in a sandbox that never holds the submission.

The first line on stdin is the job. Each line on the original stdout is a call of the submission ("C"), a request
to the sandbox that is graded ("H": run a program, read a file) or the results ("D"). Each request gets one line as
its response on stdin.
"""

from __future__ import annotations

import builtins
import collections
import json
import os
import resource
import sys
import threading
import types
from typing import Any  # Any: JSON, and the tests' names

from sandboxkit.integrations.rewards._in_sandbox.decode import Listed, Malformed, decode
from sandboxkit.integrations.rewards._in_sandbox.encode import TooDeep, encode
from sandboxkit.integrations.rewards._in_sandbox.running import (
    define,
    module_of_tests,
    problem,
    run_test,
)
from sandboxkit.integrations.rewards._in_sandbox.submission import send, take_channel

_ENDS = (GeneratorExit, KeyboardInterrupt, StopAsyncIteration, StopIteration, SystemExit)
"""Exceptions that end loops and programs quietly, so that the tests would not see that anything is wrong."""


class BeyondPlain(BaseException):
    """Raised if the tests pass something else than plain data."""


class Channel:
    """The connection to the host."""

    def __init__(self, lines: Any, descriptor: int) -> None:
        self._lines, self._descriptor = lines, descriptor
        self._lock = threading.RLock()  # tests may have threads
        self.failed: list[str] | None = None
        """Why every test of this job fails from now on."""

    def ask(self, kind: str, value: Any) -> Any:
        """Send a request; return its response."""
        with self._lock:
            self.tell(kind, value)
            return json.loads(self._lines.readline())

    def tell(self, kind: str, value: Any) -> None:
        """Send a line without a response."""
        send(self._descriptor, [kind, value])


def function(channel: Channel, name: str, in_place: Any) -> Any:
    """Return a function that calls the submission's function `name`.

    `in_place` has the positions and keywords of the arguments that may change; True for all.
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        given: dict[Any, Any] = {**dict(enumerate(args)), **kwargs}
        try:
            sent = {key: encode(each, _refuse) for key, each in given.items()}
        except BeyondPlain as error:
            channel.failed = ["shared", str(error)]
            raise
        asked = [key for key in given if in_place is True or key in in_place]
        args_sent = [sent[each] for each in range(len(args))]
        answer = channel.ask("C", [name, args_sent, {key: sent[key] for key in kwargs}, asked])
        kind, *content, changed, printed = answer
        sys.stdout.write(printed)

        def read(wire: Any) -> Any:
            try:
                return decode(wire, lambda each, _: Unknown(channel, name, *each[1:]))
            except (Malformed, TypeError, LookupError):
                channel.failed = ["tampered", f"{name}() returned a value that is none"]
                raise

        for key, new in zip(asked, changed):  # noqa: B905 - Python 3.8
            _change(given[key], read(new))
        if kind == "value":
            return read(content[0])
        _, bases, own, text, arguments = content
        failure = _error(bases, own, text, list(map(read, arguments)))
        if isinstance(failure, _ENDS):
            channel.failed = ["failed", f"{name}() raised {type(failure).__name__}"]
        raise failure

    call.__name__ = call.__qualname__ = name
    return call


def _error(bases: list[Any], own: str, text: str, args: list[Any]) -> BaseException:
    """Return an exception with a submission's text whose class has the built-in bases of its own one.

    The submission may have forged the names: only those of exceptions count, and none of `exec` and the like.
    """
    found = [getattr(builtins, each, None) for each in bases if isinstance(each, str)]
    kinds = tuple(
        each for each in found if isinstance(each, type) and issubclass(each, BaseException)
    )
    kinds = kinds or (Exception,)
    if kinds[1:] or own != kinds[0].__name__:
        kinds = (type(own, kinds, {"__str__": lambda _: text}),)
    made: BaseException = kinds[0](*args)
    return made


class Unknown:
    """Stands for an object that is no plain data, of which only truth and texts are known. Any other use fails the test."""

    def __init__(self, channel: Channel, function: str, kind: str, *looks: Any) -> None:
        self.__dict__.update(looks=looks or (None, None, None), channel=channel)
        self.__dict__["failure"] = ["failed", f"{function}() returned a {kind}, not plain data"]

    def _known(self, what: int) -> Any:
        found = self.__dict__["looks"][what]
        return self._fail() if found is None else found

    def _fail(self, *_: Any) -> Any:
        self.__dict__["channel"].failed = self.__dict__["failure"]
        raise TypeError(self.__dict__["failure"][1])

    def __bool__(self) -> bool:
        return self._known(0) is True

    def __str__(self) -> str:
        return str(self._known(1))

    def __repr__(self) -> str:
        return str(self._known(2))

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __hash__ = __len__ = __iter__ = _fail
    __getitem__ = __contains__ = __call__ = __getattr__ = __add__ = __radd__ = __index__ = _fail


def _refuse(value: Any, depth: int) -> Any:
    # What a result is must not decide where the tests run.
    if isinstance(value, Unknown):
        value._fail()
    if isinstance(value, TooDeep):
        raise ValueError("an argument is nested too deeply")
    if isinstance(value, Listed):
        return ["iterator", [encode(each, _refuse, depth + 1) for each in value]]
    if isinstance(value, types.SimpleNamespace):
        fields = vars(value).items()
        return ["record", "", [[name, encode(each, _refuse, depth + 1)] for name, each in fields]]
    raise BeyondPlain(f"a {type(value).__name__} is no plain data")


def _change(old: Any, new: Any) -> Any:
    """Give an argument, and what is in it, the content that it has after a call; return the new value."""
    if isinstance(new, (list, collections.deque)) and type(old) is type(new):
        kept = [_change(was, now) for was, now in zip(old, new)]  # noqa: B905 - Python 3.8
        rest = list(new)[len(old) :]
        old.clear()
        old.extend(kept + rest)
    elif isinstance(new, dict) and type(old) is type(new):
        now = {key: _change(old[key], each) if key in old else each for key, each in new.items()}
        old.clear()
        old.update(now)
    elif isinstance(new, (set, bytearray)) and type(old) is type(new):
        old.clear()
        (old.update if isinstance(old, set) else old.extend)(new)
    else:
        return new
    return old


class SubjectMachine:
    """The module that `import subject` returns: access to programs and files of the sandbox that is graded."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

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

    def read_files(self, path: str, max_bytes: int = 16 << 20) -> dict[str, bytes]:
        """Return the content of each regular file below a folder, by its path in it. Links are left out.

        Raises FileNotFoundError or OSError.
        """
        found = self._request("files", path, max_bytes)
        return {name: bytes.fromhex(content) for name, content in found.items()}

    def git(self, path: str, max_bytes: int = 64 << 20) -> Any:
        """Copy the repository whose `.git` folder is `path`; return a function that runs git in the copy.

        The copy is in the judge's sandbox and has the objects, the references and the index, but no settings,
        hooks, replacements or work tree. The function returns git's output. Raises OSError.
        """
        import shutil
        import tempfile

        from sandboxkit.integrations.rewards._in_sandbox.repository import repository

        if shutil.which("git") is None:
            self._request("lacks", "git")
        return repository(self.read_files(path, max_bytes), tempfile.mkdtemp())

    def write_file(self, path: str, data: bytes | str) -> None:
        """Write a file. Raises OSError."""
        content = data.encode() if isinstance(data, str) else data
        self._request("write", path, content.hex())

    def remove(self, path: str) -> None:
        """Remove a file or a tree; a missing one is no error. Raises OSError."""
        self._request("remove", path)

    def _request(self, what: str, *arguments: Any) -> Any:
        answer = self._channel.ask("H", [what, *arguments])
        if answer[0] == "error":
            raise getattr(builtins, answer[1])(answer[2])
        return answer[1]


def judge(channel: Channel, job: Any) -> list[Any]:
    """Run the tests; return [outcome, detail] of each, in order, up to the first failure."""
    functions = {
        name: function(channel, real, job["in_place"].get(real, ()))
        for name, real in job["functions"].items()
    }
    by_real = {real: functions[name] for name, real in job["functions"].items()}
    module = sys.modules[job["module"]] = types.ModuleType(job["module"])
    module.__dict__.update(by_real, __all__=list(by_real))
    sys.modules["subject"] = SubjectMachine(channel)  # type: ignore[assignment] # no module is needed
    names = module_of_tests(functions)
    results = [problem(lambda: define(names, job["sources"]))]
    for test in job["tests"] if results == [["passed", ""]] else ():
        results.append(problem(lambda: run_test(names, test)))  # noqa: B023 - called at once
        if results[-1] != ["passed", ""]:
            break
    if channel.failed:
        results[-1] = channel.failed
    return results


def main() -> None:
    """Run the job on stdin, send the results and exit the process."""
    lines, descriptor = take_channel()
    channel = Channel(lines, descriptor)
    job = json.loads(lines.readline())
    seconds, memory = job["seconds"], job["memory"]
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 5))
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    sys.path.insert(0, os.getcwd())
    channel.tell("D", judge(channel, job))
    os._exit(0)
