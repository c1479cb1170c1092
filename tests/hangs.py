"""A test that goes on after its timeout ends its process, which prints what each thread does.

pytest-timeout raises an exception in the test, but a wait for a thread holds it up for ever: the run hung
once until the machine was taken away. xdist reports the test of an ended process and starts another one.
"""

import faulthandler
import os
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager

import pytest

_SECONDS = 240
"""How long a phase of a test may take after its timeout: the suite's last clean-up takes most."""
_file = pytest.StashKey[int]()


def pytest_configure(config: pytest.Config) -> None:
    assert sys.__stderr__ is not None
    # Later, what is written to standard error belongs to the test that is running.
    config.stash[_file] = os.dup(sys.__stderr__.fileno())


@contextmanager
def _bounded(item: pytest.Item) -> Iterator[None]:
    if timeout := _timeout(item):
        file = item.config.stash[_file]
        faulthandler.dump_traceback_later(timeout + _SECONDS, file=file, exit=True)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


def _timeout(item: pytest.Item) -> float:
    """Return pytest-timeout's limit for a test (s); 0 for none, and for a test in a debugger."""
    if item.config.getoption("usepdb"):
        return 0.0
    given = item.config.getoption("timeout")
    if mark := item.get_closest_marker("timeout"):
        given = mark.args[0] if mark.args else mark.kwargs["timeout"]
    return float(item.config.getini("timeout") if given is None else given)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, object, object]:
    with _bounded(item):
        return (yield)


pytest_runtest_call = pytest_runtest_teardown = pytest_runtest_setup
