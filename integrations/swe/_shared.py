"""Grades with a `test.sh` that runs in the same sandbox as the submission.

The submission may run as the same user as the tests and has the same access, so these verdicts
have `trust="shared"`. Countermeasures: /tests and /logs are created anew before any code of the
submission runs; the shell of `test.sh` is an execute-only copy, so its own user cannot read its
memory or descriptors; every process of the tests is killed before the reward is read; links to the
reward are refused; and a reward counts only with exit status 0, unless the task sets
`reward_decides`. SHARED.md lists the remaining risks, of which a `judge.py` that only reads files has none.
"""

import json
import math
import re
import secrets
import stat
import tempfile
from collections.abc import AsyncIterable
from pathlib import Path
from typing import Any

from sandboxkit import (
    CommandStartError,
    CommandTimeoutError,
    Sandbox,
    SandboxFileError,
    SandboxFileNotFoundError,
)
from sandboxkit.datasets import Folder
from sandboxkit.integrations.rewards import Outcome, Verdict
from sandboxkit.integrations.swe._swe_bench import SWE_BENCH, resolved
from sandboxkit.integrations.swe._task import Task
from sandboxkit.integrations.swe._terminal_bench import all_passed
from sandboxkit.types import FileType

_TESTS, _LOGS, _REWARD = "/tests", "/logs/verifier", "/logs/verifier/reward.txt"
_MORE_LOGS = "/logs/agent /logs/artifacts"
"""Folders that Harbor mounts in every sandbox of a task, besides that of the tests."""
_REWARDS = "/logs/verifier/reward.json"
_SHELL = "/logs/shell"
_MAX_SCRIPT = 8 << 20
_MAX_REWARD = 100
_MAX_REWARDS = 64 * 1024
_KILLED = 128
_KILL_ALL = "kill -KILL -1; exit 0"  # kill fails if there was no other process
_SECONDS = 60.0
_OWN_PROCESSES = ("local", "docker")
"""Backends whose sandbox has its own PID namespace, in which `kill -1` spares sandboxkit's agent (pid 1)."""

# The kernel does not let a user trace a program that the user cannot read.
_CLOSE = f'cp "$BASH" {_SHELL} && chmod 0111 {_SHELL}'
# `source` reads the whole script before its first line runs. The shell then waits until it is
# killed together with its descendants.
_RUN = f"""
read -r nonce
export GIT_NO_REPLACE_OBJECTS=1 GIT_OPTIONAL_LOCKS=0
"$BASH" -c '. "$0"' {_TESTS}/"$0" </dev/null >&2
status=$?
printf '%s' "$nonce" >&2
printf '%s %s\\n' "$nonce" "$status"
while :; do kill -STOP $$; done
"""

# A home folder in the artefacts may have a usercustomize.py; a .pyc may replace the tests' module of its name.
_CLEAN = """
for graded; do
  find "$graded" -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null
  case "$HOME/" in "$graded"/*) mkdir -p "$0" && printf %s "$0" ;; esac
done
"""


class MissingRewardError(Exception):
    """The tests of a task with `reward_decides` ended without writing a reward in [0, 1]."""


async def run_tests(sandbox: Sandbox, task: Task) -> Verdict:
    """Run `test.sh`, after `lay_out`, and return the verdict from its reward or its exit status.

    Raises MissingRewardError if a task with `reward_decides` gets no reward.
    """
    nonce = secrets.token_hex(16)
    process = sandbox.exec(
        [_SHELL, "-c", _RUN, "test.sh" if task.script is None else task.script.name],
        cwd=task.workdir,
        env={**await clean(sandbox, task), **task.test_env},
        stdin=f"{nonce}\n",
        timeout=task.test_timeout,
    )
    try:
        line = await anext(aiter(process.stdout.lines()), "")
        status = re.fullmatch(rf"{nonce} (\d{{1,3}})", line)
        if status is not None:
            await _wait_for(nonce, process.stderr)
    finally:
        process.kill()
    try:
        result = await process
    except CommandTimeoutError:
        return Verdict(Outcome.TIMEOUT, 0.0, "policy", f"tests ran past {task.test_timeout:g} s")
    log = result.stderr.partition(nonce)[0]
    detail = ascii(log.strip()[-300:])[1:-1]
    if status is None:
        return Verdict(Outcome.KILLED, 0.0, "policy", f"the tests' shell was killed: {detail}")
    if task.parser is not None:
        if task.parser == SWE_BENCH:
            passed, said = await resolved(task, log)
            detail = ascii(said)[1:-1] or detail
        else:
            passed = all_passed(task.parser, log)
        if passed is None:
            raise MissingRewardError(f"no results that {task.parser} can read: {detail}")
        return _verdict(float(passed), detail)
    if task.reward_decides:
        return await _read_reward(sandbox, detail)
    return await _read(sandbox, task.tests, int(status[1]), detail)


async def _wait_for(nonce: str, output: AsyncIterable[str]) -> None:
    """Wait until the tests' whole output is here: a kill may lose what is on its way."""
    last = ""
    async for text in output:
        last = last[-len(nonce) :] + text
        if nonce in last:
            return


async def clean(sandbox: Sandbox, task: Task) -> dict[str, str]:
    """Remove compiled Python from the artefacts; return variables for the tests, whose home is elsewhere."""
    home = f"/tmp/{secrets.token_hex(8)}"
    argv = ["/bin/sh", "-c", _CLEAN, home, *(path.rstrip("/") for path in task.artefacts)]
    try:
        moved = (await sandbox.exec(argv, timeout=_SECONDS)).stdout
    except CommandStartError:
        moved = ""  # an image without a shell
    return {"HOME": home} if moved else {}


async def kill_all(sandbox: Sandbox) -> None:
    """Kill every process that the agent left running, on backends with a PID namespace per sandbox."""
    if sandbox.provider_name in _OWN_PROCESSES:
        await sandbox.exec(["bash", "-c", _KILL_ALL], check=True, timeout=_SECONDS)


async def make_folders(sandbox: Sandbox, *folders: str) -> None:
    """Make folders that the sandbox's user can write to, as root where that is another user."""
    script = 'mkdir -p "$@" && chmod 1777 "$@"'
    user = await _other_user(sandbox)
    await sandbox.exec(["sh", "-c", script, "sh", *folders], user=user, timeout=_SECONDS)


async def make_logs(sandbox: Sandbox) -> None:
    """Make the log folders that Harbor mounts while the agent works."""
    await make_folders(sandbox, _LOGS, *_MORE_LOGS.split())


async def lay_out(sandbox: Sandbox, tests: Path, script: Path | None = None) -> None:
    """Replace /tests and /logs by the tests, empty log folders and the shell that runs the tests.

    Raises SandboxFileError or CommandError if existing files cannot be removed or replaced.
    """
    owner = await _other_user(sandbox)
    for folder in (_TESTS, "/logs"):
        try:
            await sandbox.remove(folder, recursive=True)
        except SandboxFileNotFoundError:
            pass
    if owner is not None:
        await _lay_out_as(sandbox, tests, script, owner)
    else:
        await _upload(sandbox, tests, script, _TESTS)
        with tempfile.TemporaryDirectory() as empty:
            for folder in (_LOGS, *_MORE_LOGS.split()):
                await sandbox.upload(empty, folder)
        await sandbox.exec(["bash", "-c", _CLOSE], check=True, timeout=_SECONDS)
    for folder in (_TESTS, _LOGS):
        await _folder(sandbox, folder)


async def _upload(sandbox: Sandbox, tests: Path, script: Path | None, folder: str) -> None:
    await sandbox.upload(tests, folder)
    if script is not None:
        await sandbox.upload(script, f"{folder}/{script.name}")


async def _other_user(sandbox: Sandbox) -> str | None:
    """Return a user that the sandbox's own user cannot affect: root on Docker, unless it is root itself."""
    if sandbox.provider_name != "docker":
        return None
    own = await sandbox.exec(["id", "-u"], check=True, timeout=_SECONDS)
    return None if own.stdout.strip() == "0" else "root"


async def _lay_out_as(sandbox: Sandbox, tests: Path, script: Path | None, owner: str) -> None:
    """Lay out /tests as read-only for the sandbox's user, and log folders that the user can write to."""
    upload = f"{_TESTS}/{secrets.token_hex(8)}"

    async def run(command: str) -> None:
        await sandbox.exec(["bash", "-c", command], user=owner, check=True, timeout=_SECONDS)

    logs = f"{_LOGS} {_MORE_LOGS}"
    await run(f"mkdir {_TESTS} && mkdir -p {logs} && chmod 1777 {_TESTS} {logs} && {_CLOSE}")
    await _upload(sandbox, tests, script, upload)
    await run(f"cp -R {upload}/. {_TESTS}/")
    await sandbox.remove(upload, recursive=True)
    await run(f"chmod 0755 {_TESTS}")


async def _folder(sandbox: Sandbox, path: str) -> None:
    """Raise SandboxFileError unless every part of the path is a folder and not a link."""
    parts = path.strip("/").split("/")
    for end in range(1, len(parts) + 1):
        part = "/" + "/".join(parts[:end])
        kind = (await sandbox.stat(part)).type
        if kind is not FileType.DIRECTORY:
            raise SandboxFileError(f"{part!r} is a {kind}, not a folder", path=part)


async def _read(sandbox: Sandbox, tests: Path, status: int, detail: str) -> Verdict:
    """Return the verdict from the reward and exit status. All processes of the tests must have ended."""
    if status > _KILLED:
        return Verdict(Outcome.KILLED, 0.0, "policy", f"tests killed: {detail}")
    try:
        await _folder(sandbox, _LOGS)
        if (await sandbox.stat(_REWARD)).type is not FileType.FILE:
            return _tampered(f"{_REWARD} is not a file")
        score = _score(await sandbox.read_file(_REWARD, max_bytes=_MAX_REWARD))
    except SandboxFileNotFoundError:
        if status == 0 and _writes_reward(tests):
            return _tampered(f"status 0, but the tests' {_REWARD} is missing")
        return _verdict(1.0 if status == 0 else 0.0, detail)
    except SandboxFileError as error:
        return _tampered(f"{_REWARD}: {error}")
    if not 0 <= score <= 1:
        return _tampered(f"{_REWARD} does not contain a number in [0, 1]")
    if score > 0 and status != 0:
        return _tampered(f"{_REWARD} contains {score:g}, but the exit status is {status}: {detail}")
    return _verdict(score, detail)


async def _read_reward(sandbox: Sandbox, detail: str) -> Verdict:
    """Return the verdict from the reward alone, in `reward.json` or else `reward.txt`.

    Raises MissingRewardError if it is missing or invalid: the tests themselves may be the cause.
    """
    try:
        await _folder(sandbox, _LOGS)
        try:
            score = _named_score(await _content(sandbox, _REWARDS, _MAX_REWARDS))
        except SandboxFileNotFoundError:
            score = _score(await _content(sandbox, _REWARD, _MAX_REWARD))
    except SandboxFileNotFoundError:
        raise MissingRewardError(f"neither {_REWARDS} nor {_REWARD}: {detail}") from None
    except SandboxFileError as error:
        raise MissingRewardError(f"{_LOGS}: {error}") from None
    if not 0 <= score <= 1:
        raise MissingRewardError(f"the reward in {_LOGS} is not a number in [0, 1]: {detail}")
    return _verdict(score, detail)


async def _content(sandbox: Sandbox, path: str, most: int) -> bytes:
    """Read a regular file of up to `most` bytes. Raises SandboxFileError for other types and for links."""
    kind = (await sandbox.stat(path)).type
    if kind is not FileType.FILE:
        raise SandboxFileError(f"{path!r} is a {kind}, not a file", path=path)
    return await sandbox.read_file(path, max_bytes=most)


def _named_score(text: bytes) -> float:
    """Parse a JSON number, or a JSON object's "reward" or only value; NaN if it is not in [-1, 1]."""
    try:
        found: Any = json.loads(text)  # Any: JSON that the tests wrote
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
    """Whether the tests are expected to write a reward, since one of their files mentions reward.txt."""
    folder = Folder(tests, "the folder of tests")
    for entry in folder.entries():
        if stat.S_ISREG(entry.mode):
            with open(folder.open(entry.name), "rb") as file:
                if b"reward.txt" in file.read(_MAX_SCRIPT):
                    return True
    return False


def _verdict(score: float, detail: str) -> Verdict:
    return Verdict(Outcome.PASSED if score == 1 else Outcome.FAILED, score, "policy", detail)


def _tampered(detail: str) -> Verdict:
    return Verdict(Outcome.TAMPERED, 0.0, "policy", detail)
