"""Load a submission, evaluate one expression and report its value. Runs in a sandbox.

The job is one JSON object, passed to `main` or read from stdin; the response is one JSON line on the
original stdout. The submission shares this process and can forge the response. That gains nothing:
the response is only compared with an expected value, which is not in the sandbox.
"""

from __future__ import annotations

import json
import os
from typing import Any  # Any: values of every kind

from sandboxkit.integrations.rewards._in_sandbox.encode import encode, opaque
from sandboxkit.integrations.rewards._in_sandbox.submission import (
    LoadedSubmission,
    send,
    take_channel,
)


def _claimed(value: Any, depth: int) -> list[Any]:
    """Encode an object as the plain data with which it compares equal."""
    from sandboxkit.integrations.rewards._in_sandbox.claims import named, of_submission, plain_form

    if of_submission(value):
        return ["object", named(type(value)), plain_form(value)]
    return opaque(value, depth)


def _evaluated(submission: LoadedSubmission, job: Any) -> list[Any]:
    value = eval(compile(job["source"], "case.py", "eval", dont_inherit=True), submission.names)
    return ["value", encode(value, _claimed)]


def main(line: str | None = None) -> None:
    """Run the job in `line`, or on stdin if that is None; then exit the process."""
    lines, channel = take_channel()
    job, submission = json.loads(lines.readline() if line is None else line), LoadedSubmission()
    answer = submission.guarded(submission.load, job)
    if answer[0] == "value":
        answer = submission.guarded(lambda each: _evaluated(submission, each), job)
    send(channel, answer)
    os._exit(0)


if __name__ == "__main__":
    main()
