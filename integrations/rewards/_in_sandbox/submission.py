"""Load a submission within its CPU time limit, and run it as a function or as a program. Runs in a sandbox.

A job is one JSON object; the response is one JSON line on the original stdout. The submission shares this process
and can forge the response. That gains nothing: it is only ever read as plain data, and compared where the
submission is not.
"""

from __future__ import annotations

import builtins
import contextlib
import io
import json
import linecache
import os
import resource
import sys
import types
from typing import Any  # Any: values of every kind

from sandboxkit.integrations.rewards._in_sandbox.decode import decode
from sandboxkit.integrations.rewards._in_sandbox.encode import encode, plain, raised

_PRINTED = 1 << 20


class LoadedSubmission:
    """The submission as a module. Its failures become the responses "raised" and "memory"."""

    def __init__(self) -> None:
        self.names: dict[str, Any] = {}
        self._phase = "loading"

    def load(self, job: Any) -> list[Any]:
        """Run the prompt's code, then the submission's, then the setup code; return the response."""
        resource.setrlimit(resource.RLIMIT_CPU, tuple(job["seconds"]))
        module = types.ModuleType(job["module"])
        sys.modules[job["module"]] = module
        names = self.names = module.__dict__
        # Else the caller's would apply, which in a warm interpreter are a copy that patches do not reach.
        names["__builtins__"] = builtins
        path = names["__file__"] = os.path.join(os.getcwd(), f"{job['module']}.py")
        for source in job["prompt"]:  # such as an import, perhaps of what the image lacks
            with contextlib.suppress(Exception):
                exec(compile(source, "prompt.py", "exec", dont_inherit=True), names)
        lines = io.StringIO(job["code"], None).readlines()
        linecache.cache[path] = len(job["code"]), None, lines, path  # for inspect and tracebacks
        try:
            exec(compile(job["code"].lstrip("\ufeff"), path, "exec", dont_inherit=True), names)
        except SystemExit as end:  # programs may call sys.exit() at their end
            if end.code not in (None, 0):
                raise
        self._phase = "setup"
        entry = job["entry"]  # a method in LeetCode's form
        if entry not in names and hasattr(names.get("Solution"), entry):
            names[entry] = getattr(names["Solution"](), entry)
        exec(compile(job["setup"], "setup.py", "exec", dont_inherit=True), names)
        self._phase = "running"
        return ["value", None]

    def guarded(self, work: Any, request: Any) -> list[Any]:
        """Return the response of `work(request)`; an exception becomes a response too."""
        try:
            return list(work(request))
        except MemoryError:
            return ["memory"]
        except BaseException as error:  # noqa: BLE001 - even SystemExit is the submission's failure
            return raised(self._phase, error)


def take_channel() -> tuple[Any, int]:
    """Return stdin and the descriptor of stdout, and redirect stdin, stdout and stderr to /dev/null."""
    lines, channel = os.fdopen(os.dup(0), "rb"), os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    return lines, channel


def send(channel: int, answer: Any) -> None:
    """Write a response to the descriptor `channel` as one line of JSON."""
    data = json.dumps(answer, separators=(",", ":")).encode() + b"\n"
    while data:
        data = data[os.write(channel, data) :]


def _called(submission: LoadedSubmission, job: Any, given: dict[Any, Any]) -> list[Any]:
    value = eval(compile(job["source"], "case.py", "eval", dont_inherit=True), submission.names)
    if "args" not in job:
        return ["value", encode(value, plain)]
    given.update(enumerate(map(decode, job["args"])))
    given.update((name, decode(each)) for name, each in job["kwargs"].items())
    args = [given[each] for each in range(len(job["args"]))]
    return ["value", encode(value(*args, **{key: given[key] for key in job["kwargs"]}), plain)]


def _printed(descriptor: int) -> str:
    """Return what was written to the descriptor of stdout, with what Python still holds."""
    try:
        sys.stdout.flush()
    except BaseException:  # noqa: BLE001 - whatever the submission has put there
        pass
    return os.pread(descriptor, _PRINTED, 0).decode(errors="replace")


def main() -> None:
    """Run the job on stdin and exit the process.

    It loads a submission, evaluates an expression with its names, and perhaps calls the value.
    """
    lines, channel = take_channel()
    job, submission = json.loads(lines.readline()), LoadedSubmission()
    answer = submission.guarded(submission.load, job)
    if answer[0] == "value":
        given: dict[Any, Any] = {}
        try:
            output = os.memfd_create("stdout")
        except OSError:  # Landlock refuses it
            output = os.open(os.environ["TMPDIR"], os.O_TMPFILE | os.O_RDWR)
        os.dup2(output, 1)
        answer = submission.guarded(lambda each: _called(submission, each, given), job)
        if answer[0] != "memory" and "args" in job:
            changed = [encode(given[each], plain) for each in job["in_place"] if each in given]
            answer += [changed, _printed(output)]
    send(channel, answer)
    os._exit(0)


def run_file(path: str, soft: int, hard: int) -> None:
    """Run the program in this process, under soft and hard CPU time limits in seconds."""
    resource.setrlimit(resource.RLIMIT_CPU, (soft, hard))
    sys.argv = [path]
    names = sys.modules["__main__"].__dict__
    names["__file__"] = path
    with open(path, "rb") as file:
        source = file.read()
    exec(compile(source, path, "exec", dont_inherit=True), names)
