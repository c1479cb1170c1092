"""Checks one task by grading its reference, cheats, and wrong variants of the reference (mutants), which it makes."""

import ast
import asyncio
import builtins
import copy
import dataclasses
import itertools
import math
import random
import re
import textwrap
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sandboxkit import ConfigurationError, Session
from sandboxkit.integrations.rewards._boundary import TROUBLE, shown
from sandboxkit.integrations.rewards._cases import read, source
from sandboxkit.integrations.rewards._limits import Limits
from sandboxkit.integrations.rewards._parse import literal, parse, parse_or_none
from sandboxkit.integrations.rewards._tests import Tests, tests_of
from sandboxkit.integrations.rewards._verdict import Grader, Trust, Verdict, masked
from sandboxkit.integrations.rewards.doctor._report import ORDER, Status, TaskFinding, TaskReport

_LITERALS = "compare each result with a literal value, for inputs with different results"
_MORE = "test more inputs, also some that the prompt does not show"
_COPIES = "copy each argument before the call, or write the expected value as a literal"
_RAISES = "also test the results of calls that raise nothing, and that other errors do not pass"
_PLAIN = "test functions of plain data, or compare the type of each result as well"
_STATUS = "use HostCompare, which does not trust a process's exit status"
_ERRORS = re.compile(r"\b\w*(?:Error|Exception)\b")
_CLASS = re.compile(r"^class (\w+)(?:\((.*)\))?:", re.MULTILINE)
_STUBS = """
def stub(*a, **k):
    {body}
class Stub:
    def __init__(self, *a, **k): pass
    def __getattr__(self, name):
        if name.startswith("__"): raise AttributeError(name)
        return stub
    def __len__(self): return 0
    def __iter__(self): return iter(())
    def __contains__(self, item): return False
"""
_CLEARED = """for each in [*a, *k.values()]:
        if hasattr(each, "clear"): each.clear()
    return {}"""
_EQUAL = """
class Stub:
    def __init__(self, *a, **k): pass
    def same(self, *a, **k): return Stub()
    __call__ = __abs__ = __add__ = __sub__ = __rsub__ = __mul__ = __truediv__ = __getitem__ = same
    def yes(self, *a): return True
    __eq__ = __lt__ = __le__ = __gt__ = __ge__ = __contains__ = __bool__ = __hash__ = __len__ = yes
    def __ne__(self, other): return False
    def __iter__(self): return iter([Stub()])
    def __getattr__(self, name):
        if name.startswith("__"): raise AttributeError(name)
        return Stub()
stub = Stub()
"""


@dataclass(frozen=True, slots=True)
class Cheat:
    """A cheating submission, its name, and the remedy for the task's author."""

    name: str
    code: str
    remedy: str


# Any: a task is a row of a user's data set.
def cheats(task: Mapping[str, Any], tests: Sequence[Tests], reference: str) -> list[Cheat]:
    """Return the cheats that apply to the task, in the order in which they are reported."""
    found = [
        Cheat("an empty submission", "pass\n", _LITERALS),
        Cheat("os._exit(0) when it is loaded", "import os\nos._exit(0)\n", _STATUS),
    ]
    printed = next((case.get("stdout") for case in task.get("cases") or ()), None)
    if isinstance(printed, str):
        code = f"import sys\nsys.stdout.write({printed!r})\n"
        found.append(Cheat("a program that always prints the first expected output", code, _MORE))
    names = names_of(task, tests)
    if names:
        classes = {name: bool(_ERRORS.search(bases)) for name, bases in _CLASS.findall(reference)}
        found += [
            Cheat(name, _defined(names, classes, _STUBS.format(body=body)), remedy)
            for name, body, remedy in _bodies(task, tests, classes)
        ]
        equal = _defined(names, classes, _EQUAL)
        found.append(Cheat("an object that equals everything", equal, _PLAIN))
    return list({cheat.code: cheat for cheat in found}.values())


# Any: as above.
def names_of(task: Mapping[str, Any], tests: Sequence[Tests]) -> list[str]:
    """Return the names that the tests or cases use of the submission."""
    entry = task.get("entry_point")
    names = {entry: None} if isinstance(entry, str) and entry.isidentifier() else {}
    for each in tests:
        names |= dict.fromkeys(each.functions.values())
    return list(names)


# Any: as above.
def _bodies(
    task: Mapping[str, Any], tests: Sequence[Tests], classes: Mapping[str, bool]
) -> Iterator[tuple[str, str, str]]:
    """Yield names of cheats, what their functions do, and the remedies."""
    yield "sys.exit(0) when it is called", "raise SystemExit(0)", _STATUS
    for value in ("None", "True", "False", "0", "''", "[]"):
        yield f"always returns {value}", f"return {value}", _LITERALS
    if (answer := _answer(task, tests)) is not None:
        yield "always returns the first expected value", f"return {answer}", _MORE
    argument = "a[0] if a else None"
    yield "returns its argument", f"return {argument}", _LITERALS
    for what, value in (("0", "0"), ("None", "None"), ("the argument", argument)):
        yield f"clears its arguments and returns {what}", _CLEARED.format(value), _COPIES
    errors = _ERRORS.findall("\n".join(_sources(tests)))
    for name in dict.fromkeys([*errors, *classes]):
        if classes.get(name) or hasattr(builtins, name):
            yield f"always raises {name}", f"raise {name}('no')", _RAISES


def _sources(tests: Sequence[Tests]) -> Iterator[str]:
    for each in tests:
        yield from each.sources
        yield from each.tests


# Any: as above.
def _answer(task: Mapping[str, Any], tests: Sequence[Tests]) -> str | None:
    """Return the source of the first expected value, which the prompt may show."""
    for case in task.get("cases") or ():
        return source(read(case["expected"])) if "expected" in case else None
    nodes = [node for each in _sources(tests) for node in ast.walk(parse(each.strip()))]
    compared = [node for node in nodes if isinstance(node, ast.Compare)]
    sides = [side for node in compared for side in (node.comparators[0], node.left)]
    return next((ast.unparse(side) for side in sides if literal(side)[0]), None)


def _defined(names: Sequence[str], classes: Mapping[str, bool], stubs: str) -> str:
    """Return source that binds every name of the submission to a stub."""
    lines = [
        f"class {name}(Exception): pass"
        if classes.get(name)
        else f"{name} = {'Stub' if name in classes else 'stub'}"
        for name in names
    ]
    return "\n".join([stubs, *lines, ""])


_SHOWN = 60
_OPERATORS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Add,
    ast.Pow: ast.Mult,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
}
"""The operator that replaces each operator."""
_ROUNDED = """
import math
def _near(value):
    if type(value) in (list, tuple): return type(value)(map(_near, value))
    return {value} if type(value) is float and len(repr(value)) > 16 else value
def _wrapped(function): return lambda *a, **k: _near(function(*a, **k))
for _name in {names}:
    if callable(globals().get(_name)) and not isinstance(globals()[_name], type):
        globals()[_name] = _wrapped(globals()[_name])
"""
_SKIPPED = ("annotation", "returns", "decorator_list", "type_params", "defaults", "kw_defaults")


def mutants(reference: str, count: int, seed: int = 0) -> dict[str, str]:
    """Return up to `count` mutants, chosen at random by `seed`, each with its first changed line.

    There are none of a reference that is not Python.
    """
    tree = parse_or_none(reference)
    if tree is None:
        return {}
    original = ast.unparse(tree)
    changes = [(node, each) for node in _nodes(tree) for each in _variants(node)]
    random.Random(seed).shuffle(changes)
    found: dict[str, str] = {}
    for node, variant in changes:
        if len(found) == count:
            break
        code = ast.unparse(_Replace(node, variant).visit(tree))
        _Replace(variant, node).visit(tree)
        if code != original:
            found.setdefault(code, _difference(original, code))
    return found


@dataclass
class _Replace(ast.NodeTransformer):
    """Replaces one node in a tree, in place."""

    old: ast.AST
    new: ast.AST

    def visit(self, node: ast.AST) -> ast.AST:
        return self.new if node is self.old else self.generic_visit(node)


def _nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes to mutate: no imports, `__main__` block, f-strings, docstrings or defaults."""
    match node:
        case ast.If(test=ast.Compare(left=ast.Name(id="__name__"))) | ast.JoinedStr():
            return
        case ast.Import() | ast.ImportFrom() | ast.Expr(value=ast.Constant()):
            return
    yield node
    for name, value in ast.iter_fields(node):
        if name not in _SKIPPED:
            for each in value if isinstance(value, list) else [value]:
                if isinstance(each, ast.AST):
                    yield from _nodes(each)


def _variants(node: ast.AST) -> Iterator[ast.AST]:
    match node:
        case ast.BinOp(op=op) | ast.BoolOp(op=op) | ast.AugAssign(op=op) if type(op) in _OPERATORS:
            yield _changed(node, op=_OPERATORS[type(op)]())
        case ast.Compare(ops=[op, *rest]) if type(op) in _OPERATORS:
            yield _changed(node, ops=[_OPERATORS[type(op)](), *rest])
        case ast.Constant(value=bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(value=int() | float() as value):
            yield ast.Constant(value + 1)
            yield ast.Constant(value - 1)
        case ast.Constant(value=str(value)) if value:
            yield ast.Constant("")
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
            yield operand
        case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
            yield _changed(node, test=ast.UnaryOp(ast.Not(), test))
        case ast.Return(value=ast.expr()):
            yield ast.Return(ast.Constant(None))
    if isinstance(node, ast.Continue | ast.Break | ast.Raise | ast.AugAssign) or (
        isinstance(node, ast.Expr) and isinstance(node.value, ast.Call | ast.Yield)
    ):
        yield ast.Pass()


def _changed(node: ast.AST, **fields: object) -> ast.AST:
    changed = copy.copy(node)
    for name, value in fields.items():
        setattr(changed, name, value)
    return changed


def _difference(before: str, after: str) -> str:
    """Return the first line that differs, as "before  ->  after"."""
    lines = itertools.zip_longest(before.split("\n"), after.split("\n"), fillvalue="")
    shown = next(pair for pair in lines if pair[0] != pair[1])
    return "  ->  ".join(textwrap.shorten(line, _SHOWN, placeholder="...") for line in shown)


def rounded(reference: str, names: Sequence[str]) -> tuple[str, str]:
    """Return the reference with results wrapped: as they are, and with the last digit of floats changed.

    A float with few digits, such as 0.5, stays: it is exact in any order of operations.
    """
    exact, near = "value", "math.nextafter(value, math.inf)"
    wrapped = (_ROUNDED.format(names=list(names), value=value) for value in (exact, near))
    first, second = (f"{reference}\n{each}" for each in wrapped)
    return first, second


# Any, throughout: a task is a row of a user's data set.
_MUTANTS = 20
_SECONDS = 300.0
_WEAK = 1 / 3
"""A task is weak if more than this share of the variants pass. A few may be as correct as the
reference, for example with `<` for `<=`."""
_BRIEF = 2.0
"""CPU time limit in seconds for a cheat or a variant, unless the reference needs more."""
_AT_ONCE = 4
"""Number of concurrent gradings in a session without a pool."""
_CHANCE = re.compile(r"\b(random|secrets|uuid\d?|urandom|perf_counter|monotonic|Thread)\b")
_RUNS_OF_CHANCE = 15
"""How often the reference is graded again if it or the tests use chance, time or threads."""
_TRIES = 3
"""How often the reference must pass with a key before the key is proposed."""


async def check(
    session: Session,
    grader: Grader,
    task: Mapping[str, Any],
    reference: str,
    *,
    name: str = "task",
    mutants: int = _MUTANTS,
    seconds: float = _SECONDS,
) -> TaskReport:
    """Grade the reference, cheats and up to `mutants` wrong variants; report the task's defects.

    A task without usable tests is reported as refused. The report covers all gradings that end within
    `seconds` of the start of the first. Infrastructure failures are reported as "unknown" and not raised.
    """
    begun = time.monotonic()
    room = asyncio.Semaphore(2 * session.pool or _AT_ONCE)
    checkup = _Checkup(session, grader, task, reference, room, seconds)
    findings = await checkup.run(mutants)
    found: list[Status] = ["fine", *[finding.kind for finding in findings]]
    return TaskReport(
        name,
        max(found, key=ORDER.index),
        tuple(findings),
        checkup.level,
        checkup.why if checkup.level == "shared" else "",
        checkup.cheats,
        checkup.mutants,
        checkup.survivors,
        round(time.monotonic() - begun, 3),
    )


@dataclass
class _Checkup:
    session: Session
    grader: Grader
    task: Mapping[str, Any]
    reference: str
    room: asyncio.Semaphore
    seconds: float
    level: Trust = "isolated"
    why: str = ""
    cheats: int = 0
    mutants: int = 0
    survivors: int = 0
    _until: float = math.inf

    async def run(self, count: int) -> list[TaskFinding]:
        """Run the check with up to `count` wrong variants; return the findings."""
        begun = time.monotonic()
        try:
            getattr(self.grader, "validate", lambda _: None)(self.task)
        except ConfigurationError as error:
            return [TaskFinding("refused", str(error), "correct the task")]
        tests = _tests(self.task)
        first = await self._grade(self.reference, self.task)
        beside = f"{type(self.grader).__name__} runs the tests in the submission's process"
        self.why = shared_because(self.grader, self.task)
        self.level = "shared" if self.why else "isolated"
        if first.score == 1:  # all tests ran
            self.level, self.why = first.trust, self.why or beside
        if first.reward is None:
            return [TaskFinding("unknown", first.detail)]
        if (finding := await self._repeated(first, tests)) is not None:
            return [finding]
        if first.score < 1:
            what = f"{first.outcome}: {first.detail}"
            return [TaskFinding("refused", what, await self._remedy())]
        return await self._try_all(tests, count, time.monotonic() - begun)

    async def _grade(
        self, code: str, task: Mapping[str, Any], grader: Grader | None = None
    ) -> Verdict:
        """Grade a submission in the time that is left; what keeps it from that is masked."""
        async with self.room:
            self._until = min(self._until, time.monotonic() + self.seconds)
            try:
                async with asyncio.timeout(max(0, self._until - time.monotonic())):
                    return await (grader or self.grader).grade(self.session, code, task)
            except TimeoutError:
                return masked("not graded in time")
            except TROUBLE as error:
                return masked(f"{type(error).__name__}: {shown(error)}")

    async def _repeated(self, first: Verdict, tests: Iterable[Tests]) -> TaskFinding | None:
        """Grade the unchanged reference again: in new processes and so with other hash seeds, and in another order."""
        fresh, turned = _limited(self.grader, reuse="never"), _turned(self.task)
        runs = [(task, each) for each in (self.grader, fresh) for task in (turned, self.task)]
        if _CHANCE.search("\n".join([self.reference, *(str(each.job()) for each in tests)])):
            runs += [(self.task, self.grader)] * _RUNS_OF_CHANCE
        again = await asyncio.gather(*[self._grade(self.reference, *each) for each in runs])
        verdicts = [first, *(each for each in again if each.reward is not None)]
        failures = [each for each in verdicts if each.score < 1]
        if len(failures) in (0, len(verdicts)):
            return None
        what = f"its reference fails {len(failures)} of {len(verdicts)} times: {failures[0].detail}"
        remedy = "make tests and reference free of chance, of the tests' order and of hash seeds"
        return TaskFinding("refused", what, remedy)

    async def _remedy(self) -> str:
        """Return the first key with which the reference passes each time; else what is wrong."""
        for key in ("in_place", "stateful"):
            changed = {**self.task, key: True}
            verdicts = [await self._grade(self.reference, changed) for _ in range(_TRIES)]
            if all(each.score == 1 for each in verdicts):
                return f'with "{key}": true in the task its reference passes'
        return "the reference and the tests disagree: correct one of them"

    async def _try_all(self, tests: list[Tests], count: int, took: float) -> list[TaskFinding]:
        """Grade the cheats, `count` variants and differently rounded results; return the findings."""
        timeout = max(_BRIEF, 2 * took)
        brief = _limited(self.grader, timeout=timeout, wall=2 * timeout)
        tricks = cheats(self.task, tests, self.reference)
        variants = mutants(self.reference, count)
        tried = [*(each.code for each in tricks), *variants]
        tried += rounded(self.reference, names_of(self.task, tests))
        verdicts = await asyncio.gather(*[self._grade(each, self.task, brief) for each in tried])
        graded = [each.reward is not None for each in verdicts]
        passed = [each.score == 1 for each in verdicts]
        survivors = [*itertools.compress(variants.values(), passed[len(tricks) :])]
        self.cheats, self.mutants = sum(graded[: len(tricks)]), sum(graded[len(tricks) : -2])
        self.survivors = len(survivors)
        bought = itertools.compress(tricks, passed)
        findings = [TaskFinding("bought", each.name, each.remedy) for each in bought]
        if self.survivors > 1 and self.survivors > _WEAK * self.mutants:
            remedy = "test what these lines decide"
            findings += [TaskFinding("weak", each, remedy) for each in survivors]
        if passed[-2:] == [True, False] and graded[-1]:
            remedy = "compare with math.isclose(), or give the cases rel_tol"
            what = "a result that differs in the last digit of a float fails"
            findings.append(TaskFinding("weak", what, remedy))
        failures = [each.detail for each in verdicts if each.reward is None]
        if failures:
            what = f"{len(failures)} of {len(verdicts)} gradings failed: {failures[0]}"
            findings.append(TaskFinding("unknown", what))
        return findings


def shared_because(grader: Grader, task: Mapping[str, Any]) -> str:
    """Return why `HostCompare` runs a task's tests in the submission's process; "" if it does not."""
    prepared = getattr(grader, "prepared", None)
    tests = prepared(task).parts[2] if prepared else ()
    return next((each.shared for each in tests if each.shared), "")


def _tests(task: Mapping[str, Any]) -> list[Tests]:
    """Return the tests as HostCompare reads them; none if they are for another grader."""
    try:
        return tests_of(task, list(task.get("test_list") or ()))
    except ConfigurationError:
        return []


def _turned(task: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the task with the tests of its module, and of each class, in the opposite order."""
    tree = parse_or_none(str(task.get("tests") or "").strip())
    if "tests" not in task or tree is None:  # none, or in another language
        return task
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    owners: list[ast.Module | ast.ClassDef] = [tree, *classes]
    for owner in owners:
        tests = [each for each in owner.body if getattr(each, "name", "").startswith("test")]
        owner.body = [each for each in owner.body if each not in tests] + tests[::-1]
    return {**task, "tests": ast.unparse(tree)}


def _limited(grader: Grader, **changes: Any) -> Grader:
    """Return the grader with other limits, no longer than its own; the same grader if it has none."""
    limits = getattr(grader, "limits", None)
    if not isinstance(limits, Limits) or not dataclasses.is_dataclass(grader):
        return grader
    most = {"timeout": limits.timeout, "wall": limits.longest}
    changes = {name: min(value, most.get(name, value)) for name, value in changes.items()}
    limited: Grader = dataclasses.replace(grader, limits=dataclasses.replace(limits, **changes))
    return limited
