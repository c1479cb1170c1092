"""Grading a task: tests reach a sandbox only now, and by default one that the agent never saw."""

import math
from importlib import resources

from sandboxkit import (
    CommandTimeoutError,
    ConfigurationError,
    Sandbox,
    SandboxError,
    SandboxFileError,
    SandboxFileNotFoundError,
    Session,
)
from sandboxkit.integrations.rewards import Outcome, Verdict, grade_in_fresh
from sandboxkit.integrations.swe._task import Task

_TESTS = "/tests"
_REWARD = "/logs/verifier/reward.txt"
_GUARD = resources.files("sandboxkit.integrations.swe").joinpath("_in_sandbox/guard.py")
_KILLED = 128
_FILES_SECONDS = 900  # for the sandboxes, and for what is copied from one to the other


async def grade(session: Session, task: Task, agent: Sandbox, *, retries: int = 2) -> Verdict:
    """Grade what the agent left in its sandbox, which is stopped then.

    The task's artefacts are copied to a pristine sandbox of the task's image, where its tests
    run; `setup.sh` does not run there. With `in_place` the tests run beside what the agent left.
    """

    async def test(sandbox: Sandbox) -> Verdict:
        return await _test(sandbox, task)

    if task.in_place:
        return await _in_place(agent, task)
    return await grade_in_fresh(
        agent,
        task.artefacts,
        lambda: make_sandbox(session, task),
        test,
        retries=retries,
        deadline=_FILES_SECONDS + (retries + 1) * task.test_timeout,
    )


def make_sandbox(session: Session, task: Task) -> Sandbox:
    """A sandbox of the task's image, not started yet."""
    limits = {"workdir": task.workdir, "memory_mb": task.memory_mb, "cpus": task.cpus}
    given = {name: value for name, value in limits.items() if value is not None}
    if task.image is not None:
        given["image"] = task.image
    return session.sandbox(**given)  # type: ignore[arg-type]  # keys of SandboxSpec


async def _in_place(agent: Sandbox, task: Task) -> Verdict:
    try:
        return await _test(agent, task)
    except ConfigurationError:
        raise
    except SandboxError as error:
        detail = f"{type(error).__name__} while grading: {error}"
        return Verdict(Outcome.INFRA_ERROR, 0.0, "infra", detail)
    finally:
        await agent.stop()


async def _test(sandbox: Sandbox, task: Task) -> Verdict:
    await sandbox.upload(task.tests, _TESTS)
    await sandbox.write_file(f"{_TESTS}/guard.py", _GUARD.read_bytes())
    await sandbox.exec(["rm", "-rf", "/logs/verifier"], check=True, timeout=60)
    await sandbox.exec(["mkdir", "-p", "/logs/verifier"], check=True, timeout=60)
    try:
        result = await sandbox.exec(
            ["bash", f"{_TESTS}/test.sh"], cwd=task.workdir, timeout=task.test_timeout
        )
    except CommandTimeoutError:
        return Verdict(Outcome.TIMEOUT, 0.0, "policy", f"tests ran past {task.test_timeout:g} s")
    detail = ascii((result.stdout + result.stderr).strip()[-300:])[1:-1]
    if result.returncode > _KILLED:
        return Verdict(Outcome.KILLED, 0.0, "policy", f"tests killed: {detail}")
    try:
        text = await sandbox.read_file(_REWARD, max_bytes=100)
    except SandboxFileNotFoundError:
        return _verdict(1.0 if result.returncode == 0 else 0.0, detail)
    except SandboxFileError as error:
        return Verdict(Outcome.TAMPERED, 0.0, "policy", f"{_REWARD}: {error}")
    try:
        score = float(text)
    except ValueError:
        score = math.nan
    if not 0 <= score <= 1:
        return Verdict(Outcome.TAMPERED, 0.0, "policy", f"{_REWARD} holds no number in [0, 1]")
    return _verdict(score, detail)


def _verdict(score: float, detail: str) -> Verdict:
    return Verdict(Outcome.PASSED if score == 1 else Outcome.FAILED, score, "policy", detail)
