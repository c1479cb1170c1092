"""The grader to prefer: the sandbox computes values, the host compares them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sandboxkit import ConfigurationError, Session
from sandboxkit.integrations.rewards import _cases
from sandboxkit.integrations.rewards._canary import Canary
from sandboxkit.integrations.rewards._evaluation import Submission, evaluate_all
from sandboxkit.integrations.rewards._isolated import Limits
from sandboxkit.integrations.rewards._verdict import Outcome, Verdict


@dataclass(frozen=True, slots=True)
class HostCompare:
    """Runs each case in a pristine sandbox of its own and compares its value on the host.

    No expected value ever enters a sandbox, so there is nothing to read, patch or forge: a
    submission passes only if it knows the answers. What remains is to know them beforehand:
    keep back some cases that the prompt does not show.

    A task has `cases`, a list of {"args", "kwargs", "expected"} for the function `entry_point`
    or of {"stdin", "stdout"} for a program, with `strict` (default True: 1, 1.0 and True
    differ), `rel_tol` and `abs_tol`; or `test_list`, lines such as `assert f(1) == 2`, with
    `test_setup_code` run after the submission, as in MBPP. Lines are compared as Python
    compares plain values. Those that cannot be taken apart are left to `Canary`.

    With `partial` the score is the share of the cases that passed, and all are run. With
    `together` all function cases of a submission are called in one process: as many times
    fewer sandboxes, but the submission sees the inputs of all cases, which tells it something
    where the input of one is the answer to another.
    """

    limits: Limits = field(default_factory=Limits)
    partial: bool = False
    together: bool = False

    def __post_init__(self) -> None:
        if self.partial and self.together:
            raise ConfigurationError("partial=True needs cases that are run apart: not together")

    # Any: see Grader.
    async def grade(self, session: Session, submission: str, task: Mapping[str, Any]) -> Verdict:
        """Grade a submission. Raises ConfigurationError for a task without usable cases."""
        lines = list(task.get("test_list", ()))
        setup = str(task.get("test_setup_code", ""))
        helpers = _cases.bound_names(setup)
        parts = [_cases.from_assert(line, helpers) for line in lines]
        cases = [*_cases.declared(task), *(each for each in parts if each is not None)]
        whole = [line for line, part in zip(lines, parts, strict=True) if part is None]
        if not cases and not whole:
            raise ConfigurationError("the task has neither cases nor a test_list")
        verdict = Verdict(Outcome.PASSED, 1.0)
        if cases:
            if self.together:
                cases = _cases.merged(cases)
            code = Submission(submission, setup)
            verdict = await evaluate_all(session, code, cases, self.limits, partial=self.partial)
        if not whole or verdict.outcome is not Outcome.PASSED:
            return verdict
        rest = {"test_list": whole, "test_setup_code": setup}
        return await Canary(self.limits).grade(session, submission, rest)
