"""Idioms of tests that call functions and coroutines, and look at how they answer."""

from tests.rewards.corpus.idiom import Idiom, check, functions

_ERRORS = """
class BankError(Exception): pass
class Insufficient(BankError):
    def __init__(self, needed):
        super().__init__(f"{needed} more needed")
        self.needed = needed
def withdraw(balance, amount):
    if amount > balance: raise Insufficient(amount - balance)
    return balance - amount
"""

CALLS: dict[str, Idiom] = {
    "a decorated function": functions(
        """
        from solution import retry

        calls = []

        @retry(3)
        def flaky(value):
            '''Fail twice.'''
            calls.append(value)
            if len(calls) < 3:
                raise ConnectionError("not yet")
            return value * 2

        def test_retry():
            assert flaky(21) == 42
            assert calls == [21, 21, 21]
            assert flaky.__name__ == "flaky"
            assert flaky.__doc__ == "Fail twice."
        """,
        """
        import functools
        def retry(times):
            def decorate(function):
                @functools.wraps(function)
                def inner(*args, **kwargs):
                    for left in reversed(range(times)):
                        try: return function(*args, **kwargs)
                        except ConnectionError:
                            if not left: raise
                return inner
            return decorate
        """,
        "def retry(times): return lambda function: function",
    ),
    "the cache of a function": check(
        "fib",
        """
        candidate.cache_clear()
        assert candidate(30) == 832040
        assert candidate.cache_info().misses == 31
        assert candidate.cache_info().hits > 0
        """,
        """
        from functools import lru_cache
        @lru_cache(maxsize=None)
        def fib(n): return n if n < 2 else fib(n - 1) + fib(n - 2)
        """,
        "def fib(n): return n if n < 2 else fib(n - 1) + fib(n - 2)",
    ),
    "the signature of a function": check(
        "connect",
        """
        import inspect
        parameters = inspect.signature(candidate).parameters
        assert list(parameters) == ["host", "port", "timeout"]
        assert parameters["port"].default == 80
        assert parameters["timeout"].kind is inspect.Parameter.KEYWORD_ONLY
        assert candidate("a") == ("a", 80, None)
        """,
        "def connect(host, port=80, *, timeout=None): return (host, port, timeout)",
        "def connect(host, port=80, timeout=None): return (host, port, timeout)",
    ),
    "keywords only": check(
        "area",
        """
        assert candidate(width=2, height=3) == 6
        assert candidate(**{"width": 4}) == 4
        try:
            candidate(2, 3)
        except TypeError:
            pass
        else:
            assert False, "positional arguments were taken"
        """,
        "def area(*, width, height=1): return width * height",
        "def area(width, height=1): return width * height",
    ),
    "closures that count": functions(
        """
        from solution import make_counter

        def test_counter():
            first, second = make_counter(), make_counter(10)
            assert [first(), first(), second(), first()] == [1, 2, 11, 3]
        """,
        """
        def make_counter(start=0):
            def count():
                nonlocal start
                start += 1
                return start
            return count
        """,
        """
        state = [0]
        def make_counter(start=0):
            state[0] = start
            def count():
                state[0] += 1
                return state[0]
            return count
        """,
    ),
    "functions made of functions": check(
        "compose",
        """
        assert candidate(str, abs)(-3) == "3"
        assert candidate(lambda x: x + 1, lambda x: x * 2)(5) == 11
        assert candidate()(7) == 7
        """,
        """
        from functools import reduce
        def compose(*functions):
            return reduce(lambda f, g: lambda x: f(g(x)), functions, lambda x: x)
        """,
        """
        def compose(*functions):
            def inner(x):
                for function in functions: x = function(x)
                return x
            return inner
        """,
    ),
    "callbacks": functions(
        """
        from solution import Emitter

        def test_order():
            seen = []
            emitter = Emitter()
            emitter.on("saved", lambda name: seen.append(("first", name)))
            emitter.on("saved", lambda name: seen.append(("second", name)))
            emitter.emit("saved", "a.txt")
            emitter.emit("other", "b.txt")
            assert seen == [("first", "a.txt"), ("second", "a.txt")]

        def test_failure_of_a_callback():
            emitter = Emitter()
            def fail():
                raise KeyError("mine")
            emitter.on("x", fail)
            try:
                emitter.emit("x")
            except KeyError as error:
                assert error.args == ("mine",)
            else:
                assert False
        """,
        """
        class Emitter:
            def __init__(self): self.callbacks = {}
            def on(self, name, callback): self.callbacks.setdefault(name, []).append(callback)
            def emit(self, name, *args):
                for each in self.callbacks.get(name, ()): each(*args)
        """,
        """
        class Emitter:
            def __init__(self): self.callbacks = {}
            def on(self, name, callback): self.callbacks[name] = [callback]
            def emit(self, name, *args):
                for each in self.callbacks.get(name, ()): each(*args)
        """,
    ),
    "a list sorted in place": check(
        "sort_by_length",
        """
        words = ["ccc", "a", "bb"]
        assert candidate(words) is None
        assert words == ["a", "bb", "ccc"]
        empty = []
        candidate(empty)
        assert empty == []
        """,
        "def sort_by_length(words): words.sort(key=len)",
        "def sort_by_length(words): sorted(words, key=len)",
    ),
    "an argument that is not changed": check(
        "doubled",
        """
        items = [1, 2, 3]
        result = candidate(items)
        assert result == [2, 4, 6]
        assert items == [1, 2, 3]
        assert result is not items
        """,
        "def doubled(items): return [2 * each for each in items]",
        "def doubled(items):\n    items[:] = [2 * each for each in items]\n    return items",
    ),
    "default arguments that are not shared": check(
        "append",
        """
        assert candidate(1) == [1]
        assert candidate(2) == [2]
        mine = [0]
        assert candidate(1, mine) == [0, 1]
        assert mine == [0, 1]
        """,
        """
        def append(item, items=None):
            items = [] if items is None else items
            items.append(item)
            return items
        """,
        "def append(item, items=[]):\n    items.append(item)\n    return items",
    ),
    "constants of the module": functions(
        """
        import solution

        def test_constants():
            assert solution.MAX_SIZE == 10
            assert solution.NAMES == ("a", "b")
            assert solution.clamp(99) == solution.MAX_SIZE
        """,
        "MAX_SIZE = 10\nNAMES = ('a', 'b')\ndef clamp(n): return min(n, MAX_SIZE)",
        "MAX_SIZE = 10\nNAMES = ('a', 'b')\ndef clamp(n): return n",
    ),
    "exceptions with attributes": functions(
        """
        from solution import BankError, Insufficient, withdraw

        def test_attributes():
            try:
                withdraw(10, 30)
            except Insufficient as error:
                assert error.needed == 20
                assert str(error) == "20 more needed"
                assert error.args == ("20 more needed",)
            else:
                assert False, "nothing was raised"

        def test_hierarchy():
            assert issubclass(Insufficient, BankError) and issubclass(BankError, Exception)
            try:
                withdraw(0, 1)
            except BankError as error:
                assert type(error) is Insufficient
                return
            assert False
        """,
        _ERRORS,
        _ERRORS.replace("Insufficient(amount - balance)", "Insufficient(amount)"),
    ),
    "the cause of an exception": functions(
        """
        from solution import ConfigError, load

        def test_cause():
            try:
                load("{")
            except ConfigError as error:
                assert isinstance(error.__cause__, ValueError)
                assert "not JSON" in str(error)
            else:
                raise AssertionError("no ConfigError")
            assert load('{"a": 1}') == {"a": 1}
        """,
        """
        import json
        class ConfigError(Exception): pass
        def load(text):
            try: return json.loads(text)
            except ValueError as error: raise ConfigError("not JSON") from error
        """,
        """
        import json
        class ConfigError(Exception): pass
        def load(text):
            try: return json.loads(text)
            except ValueError: pass
            raise ConfigError("not JSON")
        """,
    ),
    "assertRaises of a TestCase": functions(
        """
        import unittest
        from solution import Insufficient, withdraw

        case = unittest.TestCase()

        def test_raises():
            with case.assertRaises(Insufficient) as caught:
                withdraw(1, 3)
            case.assertEqual(caught.exception.needed, 2)
            case.assertRaises(TypeError, withdraw, "a", 1)

        def test_text():
            with case.assertRaisesRegex(Insufficient, r"^4 more"):
                withdraw(1, 5)
            case.assertAlmostEqual(withdraw(1.0, 0.1), 0.9)
        """,
        _ERRORS,
        _ERRORS.replace("raise Insufficient", "return Insufficient"),
    ),
    "raises by hand": functions(
        """
        from contextlib import contextmanager, suppress
        from solution import Insufficient, withdraw

        @contextmanager
        def raises(kind):
            try:
                yield
            except kind:
                return
            raise AssertionError(f"no {kind.__name__}")

        def test_raises():
            with raises(Insufficient):
                withdraw(1, 2)
            with suppress(Insufficient):
                withdraw(1, 2)
                assert False, "nothing was raised"
            assert withdraw(2, 1) == 1
        """,
        _ERRORS,
        _ERRORS.replace("amount > balance", "amount > balance + 1"),
    ),
}
