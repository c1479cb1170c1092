"""A grader for tests that run beside the code: real tests among ones that must fail."""

import ast
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sandboxkit import ConfigurationError, Session
from sandboxkit.integrations.rewards import _mutation
from sandboxkit.integrations.rewards._cases import Case, FunctionCase, plain
from sandboxkit.integrations.rewards._evaluation import Submission, evaluate_all
from sandboxkit.integrations.rewards._isolated import Limits
from sandboxkit.integrations.rewards._verdict import Outcome, Verdict

_RANDOM = secrets.SystemRandom()


@dataclass(frozen=True, slots=True)
class Canary:
    """Runs each test in a pristine sandbox of its own, mixed with `canaries` mutants of each.

    A mutant is the test with another expected value, so that it must fail. All tests must pass
    and all mutants fail, each with an AssertionError. The order and the names of functions are
    random. Whoever makes everything pass, or forges results, passes mutants as well.

    It stops cheats that do not look, and no others: the test shares a process with the submission,
    which can read its source and tell a mutant by its form (a negation, a number of decimals, the
    order of a list, a value of another type), and answer accordingly. Its verdicts are `shared`.
    Use `HostCompare`, which grades the same tests where the submission never is.

    A task has `test_list`, lines of statements, or `tests`, the source of a module with test
    functions (without fixtures or classes) which may import the submission as `module`, by
    default "solution". `test_setup_code` runs before each test. It is no place for trust: the
    submission can change what is done there.
    """

    limits: Limits = field(default_factory=Limits)
    canaries: int = 3

    def __post_init__(self) -> None:
        if self.canaries < 1:
            raise ConfigurationError(f"canaries={self.canaries}: at least one is needed")

    # Any: see Grader.
    async def grade(self, session: Session, submission: str, task: Mapping[str, Any]) -> Verdict:
        """Grade a submission. Raises ConfigurationError for tests that cannot be mutated."""
        setup, items = _items(task)
        real: list[Case] = [_case(item, passes=True) for item in items]
        cases = list(real)
        for item in items:
            mutants = _mutation.mutants(item, self.canaries, _RANDOM)
            cases += [_case(mutant, passes=False) for mutant in mutants]
        _RANDOM.shuffle(cases)
        code = Submission(submission, setup, str(task.get("module", "solution")))
        verdict = await evaluate_all(session, code, cases, self.limits, judge=_judge)
        if verdict.outcome is Outcome.TAMPERED:
            # Code that is merely wrong may pass a mutant, but not what it should pass.
            alone = await evaluate_all(session, code, real, self.limits, judge=_judge)
            return verdict if alone.outcome is Outcome.PASSED else alone
        if verdict.outcome is not Outcome.PASSED:
            return verdict
        return Verdict(Outcome.PASSED, 1.0, "policy", f"{len(items)} tests")


def _items(task: Mapping[str, Any]) -> tuple[str, list[ast.Module]]:
    """The setup, and each test as a module of its own."""
    setup = str(task.get("test_setup_code", ""))
    try:
        items = [ast.parse(line.strip()) for line in task.get("test_list", ())]
        if "tests" in task:
            shared, functions = _test_functions(ast.parse(task["tests"]))
            setup = f"{setup}\n{ast.unparse(shared)}"
            items += functions
    except SyntaxError as error:
        raise ConfigurationError(f"the task's tests do not parse: {error}") from error
    if not items:
        raise ConfigurationError("the task has neither a test_list nor tests with test functions")
    return setup, items


def _test_functions(module: ast.Module) -> tuple[ast.Module, list[ast.Module]]:
    shared, tests = ast.Module([], []), list[ast.Module]()
    for node in module.body:
        match node:
            case ast.FunctionDef(name=name) if name.startswith("test"):
                if node.args.args or node.decorator_list:
                    raise ConfigurationError(
                        f"test {name!r} has arguments or decorators; only plain functions can be run"
                    )
                node.name = f"test_{secrets.token_hex(4)}"
                call = ast.parse(f"{node.name}()").body
                tests.append(ast.Module([node, *call], []))
            case ast.ClassDef(name=name) if name.startswith("Test"):
                raise ConfigurationError(f"test class {name!r}: only plain functions can be run")
            case _:
                shared.body.append(node)
    return shared, tests


def _case(item: ast.Module, *, passes: bool) -> FunctionCase:
    return FunctionCase(ast.unparse(item), plain(passes), expression=False)


def _judge(case: Case, verdict: Verdict) -> Verdict:
    """A mutant that did not fail as it must is no ordinary failure."""
    assert isinstance(case, FunctionCase)
    if case.expected == plain(True):
        if verdict.outcome is Outcome.FAILED and "another value" in verdict.detail:
            return Verdict(Outcome.FAILED, 0.0, "policy", "a test failed")
        return verdict
    if verdict.outcome is Outcome.FAILED and "another value" in verdict.detail:
        return Verdict(Outcome.TAMPERED, 0.0, "policy", "a test passed that cannot pass")
    return verdict
