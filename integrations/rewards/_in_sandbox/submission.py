"""Load a submission within its CPU time limit. Runs in a sandbox."""

from __future__ import annotations

import json
import os
import resource
import sys
import types
from typing import Any  # Any: values of every kind


class LoadedSubmission:
    """The submission as a module. Its failures become the responses "raised" and "memory"."""

    def __init__(self) -> None:
        self.names: dict[str, Any] = {}
        self._phase = "loading"

    def load(self, job: Any) -> list[Any]:
        """Run the submission's code, then the setup code; return the response."""
        resource.setrlimit(resource.RLIMIT_CPU, tuple(job["seconds"]))
        module = types.ModuleType(job["module"])
        sys.modules[job["module"]] = module
        names = self.names = module.__dict__
        path = names["__file__"] = os.path.join(os.getcwd(), f"{job['module']}.py")
        try:
            exec(compile(job["code"].lstrip("\ufeff"), path, "exec", dont_inherit=True), names)
        except SystemExit as end:  # programs may call sys.exit() at their end
            if end.code not in (None, 0):
                raise
        self._phase = "setup"
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
            from sandboxkit.integrations.rewards._in_sandbox.claims import raised

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
