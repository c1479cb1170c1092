"""Tests that run beside the code: a `test.sh`, in a sandbox where the submission runs as well.

Whoever shares a user with the tests reaches what they reach, so a verdict from here says
`trust="shared"`. What is done about it: /tests and /logs are made anew before anything of the
submission can run there; the shell of `test.sh` is an execute-only copy, whose memory and
descriptors are closed to its own user; all that the tests left alive is dead before the reward is
read; no link is followed to it; and a reward counts only with exit status 0, but for a task whose
reward decides. What cannot be promised is written in SHARED.md; `tests/judge.py` has none of it.
"""

import json
import math
import re
import secrets
import tempfile
from pathlib import Path
from typing import Any

from sandboxkit import (
    CommandTimeoutError,
    Sandbox,
    SandboxFileError,
    SandboxFileNotFoundError,
)
from sandboxkit.integrations.rewards import Outcome, Verdict
from sandboxkit.integrations.swe._task import Task
from sandboxkit.types import FileType

_TESTS, _LOGS, _REWARD = "/tests", "/logs/verifier", "/logs/verifier/reward.txt"
_REWARDS = "/logs/verifier/reward.json"
_SHELL = "/logs/shell"
_MAX_REWARD = 100
_MAX_REWARDS = 64 * 1024
_KILLED = 128
_KILL_ALL = "kill -KILL -1; exit 0"  # the status says only whether there was another process
_SECONDS = 60.0
_OWN_PROCESSES = ("local", "docker")
"""Backends whose sandbox is a process namespace, with the agent as its unkillable process 1."""

# A program that its user cannot read is one that the kernel lets no process of that user trace.
_CLOSE = f'cp "$BASH" {_SHELL} && chmod 0111 {_SHELL}'
# `source` reads the whole script before its first line runs. The shell then waits to be killed,
# and with it whatever descends from it.
_RUN = f"""
read -r nonce
"$BASH" -c '. "$0"' {_TESTS}/test.sh </dev/null >&2
printf '%s %s\\n' "$nonce" "$?"
while :; do kill -STOP $$; done
"""


class NoReward(Exception):
    """The tests of a task whose reward decides came to their end, and left none in [0, 1]."""


async def run_tests(sandbox: Sandbox, task: Task) -> Verdict:
    """Run `test.sh`, laid out before, and read its reward, or else its exit status.

    Raises NoReward where there is none and the task says that the exit status is not it.
    """
    nonce = secrets.token_hex(16)
    process = sandbox.exec(
        [_SHELL, "-c", _RUN],
        cwd=task.workdir,
        env=task.test_env,
        stdin=f"{nonce}\n",
        timeout=task.test_timeout,
    )
    try:
        said = await anext(aiter(process.stdout.lines()), "")
    finally:
        process.kill()
    try:
        result = await process
    except CommandTimeoutError:
        return Verdict(Outcome.TIMEOUT, 0.0, "policy", f"tests ran past {task.test_timeout:g} s")
    detail = ascii(result.stderr.strip()[-300:])[1:-1]
    status = re.fullmatch(rf"{nonce} (\d{{1,3}})", said)
    if status is None:
        return Verdict(Outcome.KILLED, 0.0, "policy", f"the tests' shell was killed: {detail}")
    if task.reward_decides:
        return await _read_reward(sandbox, detail)
    return await _read(sandbox, task.tests, int(status[1]), detail)


async def kill_all(sandbox: Sandbox) -> None:
    """Kill what the agent left running. Other backends have only its commands' own ends."""
    if sandbox.provider_name in _OWN_PROCESSES:
        await sandbox.exec(["bash", "-c", _KILL_ALL], check=True, timeout=_SECONDS)


async def lay_out(sandbox: Sandbox, tests: Path) -> None:
    """Put the tests, an empty log folder and a shell for them in place of what is there.

    Raises SandboxFileError or CommandError where what is there cannot be removed or is in the way.
    """
    owner = await _other_user(sandbox)
    for folder in (_TESTS, "/logs"):
        try:
            await sandbox.remove(folder, recursive=True)
        except SandboxFileNotFoundError:
            pass
    if owner is not None:
        await _lay_out_as(sandbox, tests, owner)
    else:
        await sandbox.upload(tests, _TESTS)
        with tempfile.TemporaryDirectory() as empty:
            await sandbox.upload(empty, _LOGS)
        await sandbox.exec(["bash", "-c", _CLOSE], check=True, timeout=_SECONDS)
    for folder in (_TESTS, _LOGS):
        await _folder(sandbox, folder)


async def _other_user(sandbox: Sandbox) -> str | None:
    """A user out of whose reach the sandbox's own is: Docker's root, where that is another one."""
    if sandbox.provider_name != "docker":
        return None
    own = await sandbox.exec(["id", "-u"], check=True, timeout=_SECONDS)
    return None if own.stdout.strip() == "0" else "root"


async def _lay_out_as(sandbox: Sandbox, tests: Path, owner: str) -> None:
    """Tests that their own user can only read, and a log folder that it can only write into."""
    upload = f"{_TESTS}/{secrets.token_hex(8)}"

    async def run(script: str) -> None:
        await sandbox.exec(["bash", "-c", script], user=owner, check=True, timeout=_SECONDS)

    await run(f"mkdir {_TESTS} && mkdir -p {_LOGS} && chmod 1777 {_TESTS} {_LOGS} && {_CLOSE}")
    await sandbox.upload(tests, upload)
    await run(f"cp -R {upload}/. {_TESTS}/")
    await sandbox.remove(upload, recursive=True)
    await run(f"chmod 0755 {_TESTS}")


async def _folder(sandbox: Sandbox, path: str) -> None:
    """Raise SandboxFileError unless every part of the path is a folder, and no link to one."""
    parts = path.strip("/").split("/")
    for end in range(1, len(parts) + 1):
        part = "/" + "/".join(parts[:end])
        kind = (await sandbox.stat(part)).type
        if kind is not FileType.DIRECTORY:
            raise SandboxFileError(f"{part!r} is a {kind}, not a folder", path=part)


async def _read(sandbox: Sandbox, tests: Path, status: int, detail: str) -> Verdict:
    """The verdict. No process of the tests lives any more, so what is looked at does not change."""
    if status > _KILLED:
        return Verdict(Outcome.KILLED, 0.0, "policy", f"tests killed: {detail}")
    try:
        await _folder(sandbox, _LOGS)
        if (await sandbox.stat(_REWARD)).type is not FileType.FILE:
            return _tampered(f"{_REWARD} is no file")
        score = _score(await sandbox.read_file(_REWARD, max_bytes=_MAX_REWARD))
    except SandboxFileNotFoundError:
        if status == 0 and _writes_reward(tests):
            return _tampered(f"status 0, but the tests' {_REWARD} is missing")
        return _verdict(1.0 if status == 0 else 0.0, detail)
    except SandboxFileError as error:
        return _tampered(f"{_REWARD}: {error}")
    if not 0 <= score <= 1:
        return _tampered(f"{_REWARD} holds no number in [0, 1]")
    if score > 0 and status != 0:
        return _tampered(f"{_REWARD} says {score:g}, the exit status {status}: {detail}")
    return _verdict(score, detail)


async def _read_reward(sandbox: Sandbox, detail: str) -> Verdict:
    """The verdict by the reward alone: of `reward.json`, or else of `reward.txt`.

    Raises NoReward for none, and for what is none: tests may write that of themselves.
    """
    try:
        await _folder(sandbox, _LOGS)
        try:
            score = _named_score(await _content(sandbox, _REWARDS, _MAX_REWARDS))
        except SandboxFileNotFoundError:
            score = _score(await _content(sandbox, _REWARD, _MAX_REWARD))
    except SandboxFileNotFoundError:
        raise NoReward(f"neither {_REWARDS} nor {_REWARD}: {detail}") from None
    except SandboxFileError as error:
        raise NoReward(f"{_LOGS}: {error}") from None
    if not 0 <= score <= 1:
        raise NoReward(f"what is in {_LOGS} is no number in [0, 1]: {detail}")
    return _verdict(score, detail)


async def _content(sandbox: Sandbox, path: str, most: int) -> bytes:
    """Raises SandboxFileError for a link as well."""
    kind = (await sandbox.stat(path)).type
    if kind is not FileType.FILE:
        raise SandboxFileError(f"{path!r} is a {kind}, not a file", path=path)
    return await sandbox.read_file(path, max_bytes=most)


def _named_score(text: bytes) -> float:
    """Of an object's numbers the one named "reward", or else the only one."""
    try:
        found: Any = json.loads(text)  # Any: whatever the tests wrote
    except (ValueError, RecursionError):
        return math.nan
    if isinstance(found, dict):
        only = next(iter(found.values())) if len(found) == 1 else None
        found = found.get("reward", only)
    if isinstance(found, bool) or not isinstance(found, int | float) or abs(found) > 1:
        return math.nan
    return float(found)


def _score(text: bytes) -> float:
    number = re.fullmatch(rb"\s*(\d{0,9}\.?\d{0,30}(?:[eE]-?\d{1,3})?)\s*", text)
    try:
        return math.nan if number is None else float(number[1])
    except ValueError:
        return math.nan


def _writes_reward(tests: Path) -> bool:
    """Whether the tests are meant to leave a reward file: one of them names it."""
    files = [path for path in tests.rglob("*") if path.is_file()]
    return any(b"reward.txt" in path.read_bytes() for path in files)


def _verdict(score: float, detail: str) -> Verdict:
    return Verdict(Outcome.PASSED if score == 1 else Outcome.FAILED, score, "policy", detail)


def _tampered(detail: str) -> Verdict:
    return Verdict(Outcome.TAMPERED, 0.0, "policy", detail)
