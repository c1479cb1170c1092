"""Idioms of tests that look at what a submission does: streams, files, patches, threads, blocks."""

from tests.rewards.corpus.idiom import Idiom, check, functions

_TIMER = """
class Timer:
    def __init__(self): self.events = []
    def __enter__(self):
        self.events.append("enter")
        return self
    def __exit__(self, kind, error, trace):
        self.events.append(kind.__name__ if kind else "exit")
        return kind is ValueError
"""

EFFECTS: dict[str, Idiom] = {
    "writing to a stream that was passed": check(
        "report",
        """
        import io
        out = io.StringIO()
        candidate({"b": 2, "a": 1}, out)
        assert out.getvalue() == "a=1\\nb=2\\n"
        assert out.getvalue().splitlines()[0] == "a=1"
        """,
        """
        def report(values, out):
            for name in sorted(values): out.write(f"{name}={values[name]}\\n")
        """,
        """
        def report(values, out):
            for name in values: print(f"{name}={values[name]}", file=out)
        """,
    ),
    "reading from a stream that was passed": check(
        "total",
        """
        import io
        assert candidate(io.StringIO("1\\n2\\n\\n3\\n")) == 6
        stream = io.StringIO("4\\n5")
        assert candidate(stream) == 9
        assert stream.read() == ""
        """,
        "def total(stream): return sum(int(line) for line in stream if line.strip())",
        "def total(stream): return int(stream.readline())",
    ),
    "printing": check(
        "greet",
        """
        import contextlib
        import io
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            result = candidate("ann", "bob")
        assert result is None
        assert out.getvalue() == "hello ann\\nhello bob\\n"
        """,
        "def greet(*names):\n    for name in names: print('hello', name)",
        "def greet(*names):\n    for name in names: print('hello' + name)",
    ),
    "a helper that is patched": functions(
        """
        from unittest import mock
        from solution import weather

        def test_patched():
            with mock.patch("solution.fetch", return_value={"degrees": 3}) as fetch:
                assert weather("Oslo") == "Oslo: 3"
            fetch.assert_called_once_with("Oslo")

        def test_failure():
            with mock.patch("solution.fetch", side_effect=OSError("down")):
                assert weather("Oslo") == "Oslo: unknown"
        """,
        """
        def fetch(city): raise OSError("there is no network")
        def weather(city):
            try: degrees = fetch(city)["degrees"]
            except OSError: degrees = "unknown"
            return f"{city}: {degrees}"
        """,
        """
        def fetch(city): raise OSError("there is no network")
        def weather(city): return f"{city}: 3"
        """,
    ),
    "a mock that is passed": functions(
        """
        from unittest.mock import MagicMock, call
        from solution import notify

        def test_mock():
            mailer = MagicMock()
            mailer.send.return_value = True
            assert notify(mailer, ["ann", "bob"]) == 2
            assert mailer.send.call_args_list == [call("ann", subject="hi"), call("bob", subject="hi")]
        """,
        "def notify(mailer, names): return sum(mailer.send(name, subject='hi') for name in names)",
        "def notify(mailer, names): return len(names)",
    ),
    "input that is patched": functions(
        """
        from unittest.mock import patch
        from solution import ask_number

        def test_input():
            with patch("builtins.input", side_effect=["x", "", "7"]) as asked:
                assert ask_number("n? ") == 7
            assert asked.call_count == 3
        """,
        """
        def ask_number(prompt):
            while True:
                try: return int(input(prompt))
                except ValueError: pass
        """,
        "def ask_number(prompt):\n    input(prompt)\n    return 7",
    ),
    "a file that the tests wrote": functions(
        """
        import os
        import tempfile
        from solution import count_words

        def test_count():
            with tempfile.TemporaryDirectory() as folder:
                path = os.path.join(folder, "text.txt")
                with open(path, "w") as file:
                    file.write("one two\\nthree\\n")
                assert count_words(path) == 3
                with open(path, "a") as file:
                    file.write("four")
                assert count_words(path) == 4
        """,
        "def count_words(path):\n    with open(path) as file: return len(file.read().split())",
        "def count_words(path): return 3",
    ),
    "a file that the submission wrote": functions(
        """
        import json
        import pathlib
        import tempfile
        from solution import save

        def test_save():
            with tempfile.TemporaryDirectory() as folder:
                path = pathlib.Path(folder, "sub", "data.json")
                save(path, {"b": 1})
                assert path.exists()
                assert json.loads(path.read_text()) == {"b": 1}
        """,
        """
        import json
        def save(path, data):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(data))
        """,
        "def save(path, data): return data",
    ),
    "a database in a file": functions(
        """
        import sqlite3
        from solution import add_user

        def test_rows():
            connection = sqlite3.connect(":memory:")
            connection.execute("create table users (name text)")
            add_user(connection, "ann")
            add_user(connection, "o'brien")
            rows = connection.execute("select name from users order by name").fetchall()
            assert rows == [("ann",), ("o'brien",)]
        """,
        "def add_user(connection, name): connection.execute('insert into users values (?)', (name,))",
        "def add_user(connection, name): connection.execute(\"insert into users values ('x')\")",
    ),
    "an environment that is patched": functions(
        """
        import os
        from unittest.mock import patch
        from solution import setting

        def test_environment():
            with patch.dict(os.environ, {"APP_DEBUG": "1"}):
                assert setting("debug") == "1"
            assert setting("debug") == "0"
        """,
        "import os\ndef setting(name): return os.environ.get('APP_' + name.upper(), '0')",
        "def setting(name): return '1'",
    ),
    "time that is patched": functions(
        """
        import time
        from unittest.mock import patch
        from solution import Cache

        def test_expiry():
            with patch("time.time", return_value=1000.0) as clock:
                cache = Cache(seconds=10)
                cache.put("a", 1)
                clock.return_value = 1009.0
                assert cache.get("a") == 1
                clock.return_value = 1011.0
                assert cache.get("a") is None
        """,
        """
        import time
        class Cache:
            def __init__(self, seconds): self.seconds, self.items = seconds, {}
            def put(self, key, value): self.items[key] = (time.time(), value)
            def get(self, key):
                then, value = self.items[key]
                return value if time.time() - then <= self.seconds else None
        """,
        """
        class Cache:
            def __init__(self, seconds): self.items = {}
            def put(self, key, value): self.items[key] = value
            def get(self, key): return self.items[key]
        """,
    ),
    "a seeded random": check(
        "shuffled",
        """
        import random
        first = candidate([1, 2, 3, 4, 5], random.Random(7))
        expected = [1, 2, 3, 4, 5]
        random.Random(7).shuffle(expected)
        assert first == expected
        """,
        "def shuffled(items, rng):\n    items = list(items)\n    rng.shuffle(items)\n    return items",
        "def shuffled(items, rng): return sorted(items, key=lambda each: rng.random())",
    ),
    "logging that is captured": functions(
        """
        import logging
        import unittest
        from solution import divide

        def test_warning():
            with unittest.TestCase().assertLogs("maths", level="WARNING") as logs:
                assert divide(1, 0) is None
            assert logs.output == ["WARNING:maths:division by zero"]
            assert logs.records[0].levelno == logging.WARNING
        """,
        """
        import logging
        def divide(a, b):
            if b: return a / b
            logging.getLogger("maths").warning("division by zero")
        """,
        "def divide(a, b): return a / b if b else None",
    ),
    "warnings that are captured": functions(
        """
        import warnings
        from solution import old

        def test_warning():
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                assert old(2) == 4
            assert len(caught) == 1
            assert issubclass(caught[0].category, DeprecationWarning)
            assert "new()" in str(caught[0].message)
        """,
        """
        import warnings
        def old(n):
            warnings.warn("use new()", DeprecationWarning, stacklevel=2)
            return 2 * n
        """,
        "def old(n): return 2 * n",
    ),
    "a context manager class": functions(
        """
        from solution import Timer

        def test_block():
            timer = Timer()
            with timer as entered:
                assert entered is timer
                timer.events.append("body")
            assert timer.events == ["enter", "body", "exit"]

        def test_suppressed():
            with Timer() as timer:
                raise ValueError("put aside")
            assert timer.events == ["enter", "ValueError"]

        def test_not_suppressed():
            try:
                with Timer() as timer:
                    raise KeyError("passed on")
            except KeyError:
                return
            assert False
        """,
        _TIMER,
        _TIMER.replace("kind is ValueError", "False"),
    ),
    "a context manager made of a generator": functions(
        """
        from solution import swapped

        def test_restored():
            values = {"a": 1}
            with swapped(values, "a", 5) as before:
                assert before == 1
                assert values["a"] == 5
            assert values == {"a": 1}

        def test_restored_after_a_failure():
            values = {"a": 1}
            try:
                with swapped(values, "a", 5):
                    raise RuntimeError
            except RuntimeError:
                pass
            assert values == {"a": 1}
        """,
        """
        from contextlib import contextmanager
        @contextmanager
        def swapped(values, key, value):
            before, values[key] = values[key], value
            try: yield before
            finally: values[key] = before
        """,
        """
        from contextlib import contextmanager
        @contextmanager
        def swapped(values, key, value):
            before, values[key] = values[key], value
            yield before
            values[key] = before
        """,
    ),
    "threads": functions(
        """
        import threading
        from solution import Counter

        def test_no_update_is_lost():
            counter = Counter()
            def work():
                for _ in range(50):
                    counter.increment()
            threads = [threading.Thread(target=work) for _ in range(4)]
            for each in threads:
                each.start()
            for each in threads:
                each.join()
            assert counter.value == 200
        """,
        """
        import threading
        class Counter:
            def __init__(self): self.value, self.lock = 0, threading.Lock()
            def increment(self):
                with self.lock: self.value += 1
        """,
        """
        class Counter:
            def __init__(self): self.value = 0
            def increment(self): self.value = 1
        """,
    ),
    "an event between threads": functions(
        """
        import threading
        from solution import Mailbox

        def test_blocks_until_there_is_something():
            box, found = Mailbox(), []
            taker = threading.Thread(target=lambda: found.append(box.take(timeout=30)))
            taker.start()
            box.put("letter")
            taker.join(30)
            assert found == ["letter"]

        def test_empty():
            try:
                Mailbox().take(timeout=0.01)
            except TimeoutError:
                return
            assert False
        """,
        """
        import queue
        class Mailbox:
            def __init__(self): self.items = queue.Queue()
            def put(self, item): self.items.put(item)
            def take(self, timeout):
                try: return self.items.get(timeout=timeout)
                except queue.Empty: raise TimeoutError from None
        """,
        """
        class Mailbox:
            def __init__(self): self.items = []
            def put(self, item): self.items.append(item)
            def take(self, timeout): return self.items.pop() if self.items else None
        """,
    ),
}
