"""Decides from the tests alone whether a submission can be graded in isolation, as a function of plain data.

The submission is never read, so it cannot choose. In doubt the level is "shared".
"""

import ast
import builtins
import collections
import datetime
import decimal
import fractions
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from sandboxkit.integrations.rewards._parse import literal, parse_or_none

_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_PLAIN = (
    *(bool, int, float, complex, str, bytes, list, tuple, dict, set, frozenset, range),
    *(decimal.Decimal, fractions.Fraction, datetime.date, datetime.time, datetime.datetime),
    *(datetime.timedelta, collections.deque, collections.Counter, collections.OrderedDict),
)
_ATTRIBUTES = {name for kind in _PLAIN for name in dir(kind)} - {"__class__", "__dict__"}
_LOOPS = (ast.For, ast.While, ast.comprehension, ast.ListComp, ast.GeneratorExp, ast.SetComp)
_Variable = tuple[str, ast.AST | None]
"""A name, and the function in which it is used."""
_CONTEXTS = frozenset((
    "open", "input", "exec", "eval", "globals", "vars", "id", "getcontext", "setcontext", "localcontext", "now", "today",
    "utcnow", "assertLogs", "assertNoLogs", "assertWarns", "redirect_stderr",
))  # fmt: skip
"""Functions that reach more than plain data: files, the interpreter, a context, the clock."""
ALL = "*"
"""Stands for all arguments of a function."""
_ENDS = {"StopIteration", "StopAsyncIteration", "GeneratorExit", "SystemExit", "KeyboardInterrupt"}
"""Exceptions that an isolated function must not raise: they would end a test quietly."""
_OF_ERRORS = {"args", "__class__", "with_traceback"} | {
    attr
    for kind in (OSError, UnicodeDecodeError, KeyError)
    for attr in vars(kind)
    if attr[0] != "_"
}
"""Attributes of exceptions that follow from their arguments."""
_METHODS = {
    name
    for kind in _PLAIN
    for name in dir(kind)
    if name[:1] != "_" and callable(getattr(kind, name))
}
_TYPES = {kind.__name__ for kind in _PLAIN} | {"Iterable", "Iterator"}
_TAKE_FUNCTIONS = {"map", "filter", "callable", "partial", "reduce", "starmap", "accumulate"}
_MODULES = frozenset((
    "abc", "bisect", "cmath", "collections", "contextlib", "copy", "dataclasses", "datetime",
    "decimal", "fractions", "functools", "heapq", "io", "itertools", "json", "math", "numbers",
    "numpy", "operator", "pytest", "random", "re", "statistics", "string", "sys", "types", "typing",
    "unittest",
))  # fmt: skip
"""Modules that tests of plain data may use; others give access to files, time, processes, or the submission itself."""

_FILES = {"git", "read_file", "read_files", "remove", "write_file"}
"""The functions by which a judge reaches files of its subject without running programs in it."""
_EVALUATE = {
    *("__import__", "ctypes", "eval", "exec", "import_module", "importlib", "marshal", "modules"),
    *("multiprocessing", "pickle", "popen", "pty", "runpy", "shelve", "subprocess", "system"),
    *("create_subprocess_exec", "create_subprocess_shell", "execv", "execvp", "posix_spawn"),
}
"""Names with which a judge could run what it has read."""


@dataclass(frozen=True, slots=True)
class Level:
    """How the tests use the submission."""

    shared: str
    """Why the tests must run in the submission's process; "" if they need not."""
    functions: Mapping[str, str]
    """The submission's functions that they call, by the names that they have in the tests."""
    in_place: Mapping[str, Collection[int | str]]
    """Positions and keywords of the arguments that the tests read after a function may have changed them."""


def level(sources: Sequence[str], unknown: frozenset[str], module: str, entry: str) -> Level:
    """Return the level of tests that parse. The submission's function is `entry`, what they import, or else `unknown`.

    `unknown` are the names that the tests do not define.
    """
    flow = Flow([ast.parse(source) for source in sources], unknown, module, entry)
    use = _Use(flow, unknown - {module, entry})
    reason = next(use.reasons(), "")
    return Level(reason, flow.functions(), use.in_place)


def level_of_judge(source: str) -> str:
    """Return why a module of a judge.py makes its verdicts shared; "" if it only reads files as data."""
    tree = parse_or_none(source.strip())
    nodes = [*ast.walk(tree)] if tree else []  # nothing can import what does not parse
    files = [
        each.value for each in nodes if isinstance(each, ast.Attribute) and each.attr in _FILES
    ]
    for node in nodes:
        names = {getattr(node, each, None) for each in ("id", "attr", "name", "asname", "module")}
        plain = node in files or (isinstance(node, ast.alias) and node.asname is None)
        if names & _EVALUATE or ("subject" in names and not plain):
            return f"line {getattr(node, 'lineno', 1)} may run code of the submission"
    return ""


class Flow:
    """Follows the submission's functions and results through trusted sources, in time linear in their size."""

    def __init__(
        self, trees: Sequence[ast.Module], unknown: frozenset[str], module: str, entry: str
    ) -> None:
        self.module = module
        self.nodes = [node for tree in trees for node in ast.walk(tree)]
        self.parents = {child: node for node in self.nodes for child in ast.iter_child_nodes(node)}
        self.defined = {node.name: node for node in self.nodes if isinstance(node, _DEFINITIONS)}
        self.modules = set[str]()
        """Names under which the tests have the submission's module."""
        self.imported = {name: name for name in {entry, *unknown} - {module, ""}}
        """The submission's functions by the names that the tests have for them."""
        self.named = bool(entry)
        """Whether the tests or the task name the submission's functions."""
        self._import(module)
        self.scopes: dict[ast.AST, ast.AST | None] = {}
        """The function around each node."""
        for node in self.nodes:  # parents come first
            above = self.parents.get(node)
            function = isinstance(above, _DEFINITIONS[:2])
            self.scopes[node] = above if function else self.scopes.get(above) if above else None
        self._uses = defaultdict[str, list[ast.Name]](list)
        for node in self.nodes:
            if isinstance(node, ast.Name):
                self._uses[node.id].append(node)
        self._real = {name: {real} for name, real in self.imported.items()}
        self._results = set[str]()
        """Variables that may hold a result of the submission."""
        self._tainted = set[ast.AST]()
        self._follow()
        self.calls = [
            node for node in self.nodes if isinstance(node, ast.Call) and self.is_call(node)
        ]
        self.times = Counter(last(call.func) for call in self.calls)
        """How many calls of the submission's functions there are, by the name that is called."""

    def functions(self) -> dict[str, str]:
        """Return the names that the tests have for functions of the submission, and their names there."""
        through = {
            node.attr
            for node in self.nodes
            if isinstance(node, ast.Attribute) and self.is_ours(node)
        }
        return self.imported | {name: name for name in through}

    def _import(self, module: str) -> None:
        for node in self.nodes:
            found = dict[str, str]()
            match node:
                case ast.ImportFrom(module=name, names=aliases) if name == module:
                    found = {each.asname or each.name: each.name for each in aliases}
                    found.pop("*", None)
                    self.imported.update(found)
                case ast.Import(names=aliases):
                    found = {
                        each.asname or each.name: "" for each in aliases if each.name == module
                    }
                    self.modules.update(found)
            self.named = self.named or bool(found)

    def reals(self, node: ast.AST) -> set[str]:
        """Return the names in the submission of what an expression of the tests may be."""
        return {node.attr} if isinstance(node, ast.Attribute) else self._real[last(node)]

    def is_ours(self, node: ast.AST | None) -> bool:
        """Whether an expression is a name of the submission."""
        match node:
            case ast.Name(id=name):
                return name in self._real
            case ast.Attribute(value=ast.Name(id=name)):
                return name in self.modules
            case _:
                return False

    def is_call(self, node: ast.AST) -> bool:
        """Whether an expression is a call of the submission."""
        return isinstance(node, ast.Call) and self.is_ours(node.func)

    def is_result(self, node: ast.AST) -> bool:
        """Whether an expression may hold (a part of) a result of the submission."""
        return node in self._tainted

    def around(self, node: ast.AST) -> Iterator[ast.AST]:
        """Yield the nodes around one, from the inside."""
        while (parent := self.parents.get(node)) is not None:
            node = parent
            yield node

    def _follow(self) -> None:
        """Find what may hold results, and the parameters that are functions of the submission."""
        waiting: list[ast.AST] = []
        for node in self.nodes:
            if self.is_call(node):
                waiting.append(node)
            elif self.is_ours(node):
                waiting += self._given(node)
        while waiting:
            node = waiting.pop()
            if node not in self._tainted:
                self._tainted.add(node)
                parent = self.parents.get(node)
                if parent is not None:
                    waiting.append(parent)
                    for name in self._holders(parent, node) - self._results:
                        self._results.add(name)
                        waiting += self._uses[name]

    def _holders(self, parent: ast.AST, node: ast.AST) -> set[str]:
        """Return the variables that get a value when `node`, a part of `parent`, has one."""
        match parent:
            case ast.Assign(targets=targets, value=value) if value is node:
                return stored(targets)
            case (
                ast.AnnAssign(target=target, value=value)
                | ast.AugAssign(target=target, value=value)
                | ast.NamedExpr(target=target, value=value)
                | ast.For(target=target, iter=value)
                | ast.comprehension(target=target, iter=value)
            ) if value is node:
                return stored([target])
            case ast.Return():
                return {last(self.scopes[parent] or parent)} - {""}
            case ast.Call():
                parameter = self._parameter(parent, node)
                return {parameter} if parameter and not self.is_ours(node) else set()
            case _:
                return set()

    def _parameter(self, call: ast.Call, argument: ast.AST) -> str:
        """Return the parameter of the tests' own function that gets an argument, or ""."""
        function = self.defined.get(last(call.func)) if isinstance(call.func, ast.Name) else None
        if isinstance(function, ast.FunctionDef):
            for each, value in zip(function.args.args, call.args, strict=False):
                if value is argument:
                    return each.arg
        return ""

    def _given(self, node: ast.AST) -> list[ast.AST]:
        """Follow a function of the submission to a parameter; return the calls of the parameter."""
        parent = self.parents.get(node)
        name = self._parameter(parent, node) if isinstance(parent, ast.Call) else ""
        if not name or self.reals(node) <= self._real.get(name, set()):
            return []
        self._real.setdefault(name, set()).update(self.reals(node))
        found: list[ast.AST] = []
        for use in self._uses[name]:
            above = self.parents[use]
            found += [above] if self.is_call(above) else self._given(use)
        return found


def stored(targets: Sequence[ast.expr]) -> set[str]:
    """Return the variables in the targets of an assignment."""
    return {
        each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name)
    }


def last(node: ast.AST) -> str:
    """Return the last part of the name of an expression or a definition, or ""."""
    found: str = getattr(node, "id", "") or getattr(node, "attr", "") or getattr(node, "name", "")
    return found


class _Use:
    """Looks at each use that the tests make of the submission's functions and of their results."""

    def __init__(self, flow: Flow, unknown: frozenset[str]) -> None:
        self._flow, self._unknown = flow, unknown
        self.in_place = defaultdict[str, set[int | str]](set)
        self._lambdas = set[str]()
        """Variables that hold a function of the tests."""
        self._errors = set[str]()
        """Variables that hold an exception that the tests caught."""
        self._caught = set[str]()
        """Variables of `with assertRaises(...) as variable`."""
        for node in flow.nodes:
            match node:
                case ast.Assign(targets=targets, value=ast.Lambda()):
                    self._lambdas |= stored(targets)
                case ast.ExceptHandler(name=str(name)):
                    self._errors.add(name)
                case ast.withitem(
                    context_expr=ast.Call(func=func), optional_vars=ast.Name(id=name)
                ):
                    if _is_raises(func):
                        self._caught.add(name)

    def reasons(self) -> Iterator[str]:
        """Yield why the tests need the submission's process; the first reason is enough."""
        flow = self._flow
        if len(self._unknown) > (not flow.named):
            yield f"the tests use {min(self._unknown)}, which they do not define"
        for node in flow.nodes:
            yield from self._reaches_more(node)
        for node in flow.nodes:
            if isinstance(getattr(node, "ctx", None), ast.Load) and flow.is_ours(node):
                yield from self._used(node)
            yield from self._examined(node)
        of_random = [
            node.attr
            for node in flow.nodes
            if isinstance(node, ast.Attribute) and last(node.value) == "random"
        ]
        if set(of_random) == {"seed"} or of_random.count("seed") > 1:
            yield "the tests seed the submission's random numbers"
        yield from self._compared()

    def _reaches_more(self, node: ast.AST) -> Iterator[str]:
        """Look for what reaches beyond plain data without a function of the submission."""
        modules = self._flow.modules
        match node:
            case ast.Import(names=aliases):
                for name in {each.name for each in aliases} - {self._flow.module}:
                    yield from _foreign(name)
            case ast.ImportFrom(module=str(name), names=aliases):
                if {"mock", "patch", "Mock"} & {each.name for each in aliases}:
                    yield "the tests patch objects"
                if name != self._flow.module:
                    yield from _foreign(name)
            case ast.Assign(targets=[ast.Attribute(value=ast.Name(id=name))]) if name in _MODULES:
                yield f"the tests replace a part of {name}"
            case ast.Attribute(value=ast.Name(id=name), ctx=ast.Store() | ast.Del()) if (
                name in modules
            ):
                yield "the tests change the submission's module"
            case ast.Name(id=name) if name in modules:
                if not isinstance(self._flow.parents[node], ast.Attribute):
                    yield "the tests use the submission's module as an object"
            case ast.Call(func=func) if last(func) in _CONTEXTS:
                yield f"the tests use {last(func)}()"
            case ast.Await() | ast.AsyncFor() | ast.AsyncWith() | ast.AsyncFunctionDef():
                yield "the tests are asynchronous"
            case _:
                pass

    def _used(self, node: ast.AST) -> Iterator[str]:
        """Look at one use of a name of the submission."""
        name, parent = last(node), self._flow.parents[node]
        match parent:
            case ast.Call(func=func) if func is node:
                yield from self._called(name, parent)
            case ast.Call(func=func, args=[first, *_]) if _is_raises(func):
                if first is node:
                    yield f"the tests catch {name}"
            case ast.Call(func=func) if (
                last(func) in _TAKE_FUNCTIONS or last(func) in self._flow.defined
            ):
                if self._is_bare(node):
                    self._read_back(node, [ALL])
            case ast.keyword(arg="key"):
                pass
            case _:
                yield f"the tests use {name} other than by a call"

    def _called(self, name: str, call: ast.Call) -> Iterator[str]:
        """Look at a call for more than plain data, and for what only state or an effect explains."""
        arguments = list(_arguments(call))
        if name.lstrip("_")[:1].isupper():
            yield f"the tests make an object of {name}"
        if any(self._is_live(each) for _, each in arguments):
            yield f"the tests pass {name}() more than plain data"
        if not arguments:
            looped = any(isinstance(each, _LOOPS) for each in self._flow.around(call))
            if looped or self._flow.times[name] > 1:
                yield f"the tests call {name}() several times without arguments"
        if not self._is_bare(call):
            return
        if any(map(self._flow.is_result, call.args)):
            yield f"the tests call {name}() for its effect on a result"
        variables = [at for at, each in arguments if isinstance(each, ast.Name)]
        spread = "" in variables or any(isinstance(each, ast.Starred) for each in call.args)
        guarded = any(isinstance(each, ast.Try | ast.With) for each in self._flow.around(call))
        if not variables and not spread and not guarded:
            yield f"the tests call {name}() for its effect"
        self._read_back(call.func, [ALL] if spread else variables)

    def _is_live(self, node: ast.expr) -> bool:
        """Whether an argument may be or have something else than plain data."""
        for each in ast.walk(node):
            parent, name = self._flow.parents.get(each), last(each)
            called = isinstance(parent, ast.Call) and parent.func is each
            function = self._flow.defined.get(name)
            match each:
                case ast.Lambda() | ast.GeneratorExp():
                    return True
                case ast.Name() if called:
                    if name == "iter" or isinstance(function, ast.ClassDef):
                        return True
                    if function and any(isinstance(part, ast.Yield) for part in ast.walk(function)):
                        return True
                case ast.Name() if function or name in self._lambdas:
                    return True
                case ast.Attribute() if not called and name in _METHODS:
                    return True
                case ast.expr() if self._flow.is_ours(each) and not called:
                    return True
                case _:
                    pass
        return False

    def _is_bare(self, node: ast.AST) -> bool:
        """Whether a statement throws the result of a call away, perhaps with those of other calls."""
        for each in self._flow.around(node):
            listed = isinstance(each, ast.ListComp | ast.GeneratorExp | ast.comprehension)
            if not listed and last(getattr(each, "func", each)) not in _DRAIN:
                return isinstance(each, ast.Expr)
        return False

    def _read_back(self, function: ast.AST, places: Iterable[int | str]) -> None:
        for real in self._flow.reals(function):
            self.in_place[real].update(places)

    def _examined(self, node: ast.AST) -> Iterator[str]:
        """Look at what is done with a result, or with an exception."""
        is_result = self._flow.is_result
        match node:
            case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name() as value, attr=attr))):
                if is_result(value) and attr != "sort":
                    yield f"the tests call .{attr}() of a result for its effect"
            case ast.Attribute(attr="__cause__" | "__context__" | "__notes__" as attr):
                yield f"the tests use .{attr} of an exception"
            case ast.Attribute(value=value, attr=attr):
                if is_result(value) and attr not in _ATTRIBUTES:
                    yield f"the tests use .{attr} of a result"
                if self._is_error(value) and attr not in _OF_ERRORS:
                    yield f"the tests use .{attr} of an exception"
            case ast.Compare(left=left, ops=[ast.Is() | ast.IsNot()], comparators=[right]):
                yield from self._identified(left, right)
            case ast.Call(
                func=ast.Attribute(attr="assertIs" | "assertIsNot"), args=[left, right, *_]
            ):
                yield from self._identified(left, right)
            case ast.Call(func=ast.Name(id="isinstance"), args=[value, kind]) if is_result(value):
                if not all(last(each) in _TYPES for each in _each(kind)):
                    yield "the tests look for a class that is not plain data"
            case ast.ExceptHandler(type=ast.expr() as kind):
                yield from self._expected(kind)
            case ast.Call(func=func, args=[kind, *_]) if _is_raises(func):
                yield from self._expected(kind)
            case ast.Call(func=ast.Name() | ast.Call() | ast.Subscript() as func) if is_result(
                func
            ):
                if not self._flow.is_ours(func) and last(func) not in self._flow.defined:
                    yield "the tests call a result"
            case ast.FunctionDef(decorator_list=found) | ast.ClassDef(decorator_list=found):
                if any(map(is_result, found)):
                    yield "the tests decorate with a result"
            case ast.withitem(context_expr=value) if is_result(value):
                if not _is_raises(getattr(value, "func", value)):
                    yield "the tests enter a result"
            case _:
                pass

    def _identified(self, left: ast.expr, right: ast.expr) -> Iterator[str]:
        constant = isinstance(left, ast.Constant) or isinstance(right, ast.Constant)
        kind = isinstance(left, ast.Call) and last(left.func) == "type"
        if not constant and not kind and any(map(self._flow.is_result, (left, right))):
            yield "the tests compare the identity of a result"

    def _is_error(self, node: ast.expr) -> bool:
        """Whether an expression is an exception that the tests caught."""
        match node:
            case ast.Name(id=name):
                return name in self._errors
            case ast.Attribute(value=ast.Name(id=name), attr="exception" | "value"):
                return name in self._caught
            case _:
                return False

    def _expected(self, kind: ast.expr) -> Iterator[str]:
        for name in map(last, _each(kind)):
            if name in _ENDS or (name not in dir(builtins) and name not in self._flow.defined):
                yield f"the tests catch {name}"

    def _compared(self) -> Iterator[str]:
        """Find the arguments that are compared after a call: the tests look whether it changed them.

        An argument of which only a part is compared must have no other use: a function could change it for another
        expected result. Yields a reason if results are compared with each other alone: they may be objects of any kind.
        """
        whole, part, else_used = set[_Variable](), set[_Variable](), set[_Variable]()
        alone, known = False, False
        for node in self._flow.nodes:
            scope = self._flow.scopes[node]
            match node:
                case ast.Compare():
                    sides = [node.left, *node.comparators]
                case ast.Call(func=ast.Attribute(attr="assertEqual"), args=sides):
                    pass
                case (
                    ast.Assign(value=value)
                    | ast.AugAssign(value=value)
                    | ast.For(iter=value)
                    | ast.comprehension(iter=value)
                ):
                    else_used.update((name, scope) for name in self._read(value))
                    continue
                case _:
                    continue
            results = sum(map(self._flow.is_result, sides))
            alone, known = alone or results == len(sides), known or 0 < results < len(sides)
            literals = sum(literal(each)[0] for each in sides)
            for each in sides:
                names = {(name, scope) for name in self._read(each)}
                if isinstance(each, ast.Name) and not results:
                    whole |= names
                elif any(map(self._flow.is_call, ast.walk(each))):
                    else_used |= names
                elif literals == len(sides) - 1:
                    part |= names
                elif results:
                    else_used |= names
        if alone and not known:
            yield "the tests compare results with each other alone"
        compared = whole | (part - else_used)
        for call in self._flow.calls:
            scope = self._flow.scopes[call]
            found = [at for at, each in _arguments(call) if (last(each), scope) in compared]
            self._read_back(call.func, found)

    def _read(self, node: ast.AST) -> set[str]:
        """Return the variables that an expression reads itself, not as arguments of the submission."""
        found, waiting = set[str](), [node]
        while waiting:
            each = waiting.pop()
            if isinstance(each, ast.Name):
                found.add(each.id)
            if not self._flow.is_call(each):
                waiting += ast.iter_child_nodes(each)
        return found


_DRAIN = ("list", "map", "tuple", "any", "all")
"""Functions that call another one for each item."""


def _foreign(module: str) -> Iterator[str]:
    name = module.partition(".")[0]
    if name not in _MODULES:
        yield f"the tests import {name}"


def _arguments(call: ast.Call) -> Iterator[tuple[int | str, ast.expr]]:
    """Yield the position or keyword of each argument of a call."""
    yield from enumerate(call.args)
    yield from ((each.arg or "", each.value) for each in call.keywords)


def _each(kind: ast.expr) -> list[ast.expr]:
    return kind.elts if isinstance(kind, ast.Tuple) else [kind]


def _is_raises(func: ast.AST) -> bool:
    return last(func).lower().endswith(("raises", "raisesregex", "suppress"))
