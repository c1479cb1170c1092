"""Simple graders that trust the code in the sandbox: easy to understand and easy to fool."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sandboxkit import ConfigurationError, ProcessResult, Session
from sandboxkit.integrations.rewards import _programs
from sandboxkit.integrations.rewards._limits import Limits
from sandboxkit.integrations.rewards._run import run
from sandboxkit.integrations.rewards._task import checked
from sandboxkit.integrations.rewards._task_keys import EXIT_CODE, PASS_RATE
from sandboxkit.integrations.rewards._verdict import Outcome, Verdict, failed

_PROGRAM = "/workspace/program.py"


@dataclass(frozen=True, slots=True)
class ExitCode:
    """Runs the submission followed by the task's `test_list`; exit status 0 passes.

    A submission can cheat by ending the process early (`sys.exit(0)`, `os._exit(0)`), by objects
    that equal everything, or by patched builtins. Use it for trusted code or as a baseline.
    """

    limits: Limits = field(default_factory=Limits)

    # Any: see Grader.
    async def grade(self, session: Session, submission: str, task: Mapping[str, Any]) -> Verdict:
        """Grade a submission; the score is 1 or 0. Raises ConfigurationError without a `test_list`."""
        task = checked(task, EXIT_CODE)
        verdict = await _exit(session, submission, "\n".join(_tests(task)), task, self.limits)
        return verdict or Verdict(Outcome.PASSED, 1.0, "policy", "exit status 0")


@dataclass(frozen=True, slots=True)
class PassRate:
    """Runs the submission once with each line of `test_list`; the score is the share that pass.

    Each line has its own sandbox and passes with exit status 0, so all cheats against `ExitCode` work
    here too. `HostCompare(partial=True)` computes the same score without that weakness.
    """

    limits: Limits = field(default_factory=Limits)

    # Any: see Grader.
    async def grade(self, session: Session, submission: str, task: Mapping[str, Any]) -> Verdict:
        """Grade a submission; the score is passed tests / all tests.

        Raises ConfigurationError for a task without a `test_list`.
        """
        task = checked(task, PASS_RATE)
        tests, passed, first = _tests(task), 0, None
        for test in tests:
            verdict = await _exit(session, submission, test, task, self.limits)
            if verdict is not None and verdict.outcome is Outcome.INFRA_ERROR:
                return verdict
            passed += verdict is None
            first = first or verdict
        if first is None:
            return Verdict(Outcome.PASSED, 1.0, "policy", f"{passed} of {passed} tests")
        detail = f"{passed} of {len(tests)} tests; {first.detail}"
        return Verdict(first.outcome, passed / len(tests), "policy", detail)


def _tests(task: Mapping[str, Any]) -> list[str]:
    tests = list(task.get("test_list", ()))
    if not tests:
        raise ConfigurationError("the task has no test_list")
    return tests


async def _exit(
    session: Session, submission: str, tests: str, task: Mapping[str, Any], limits: Limits
) -> Verdict | None:
    program = f"{submission}\n\n{task.get('test_setup_code', '')}\n{tests}\n"
    result = await run(
        session,
        _programs.file_program(_PROGRAM, limits),
        limits,
        files={_PROGRAM: program.encode(errors="surrogatepass")},
    )
    if isinstance(result, ProcessResult):
        return failed(_last_line(result)) if result.returncode else None
    return result


def _last_line(result: ProcessResult) -> str:
    last = ascii(result.stderr.strip().rpartition("\n")[2][:200])[1:-1]
    return f"exited with status {result.returncode}: {last}"
