"""Bad input gets a typed error that names the value, before any I/O."""

import math
from typing import Any

import pytest

from sandboxkit import ConfigurationError, SandboxSpec, Session, _arguments, _spec, _tags
from sandboxkit.testing import FakeProvider


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        ("run:42", {"run": "42"}),
        ("run=42", {"run": "42"}),
        ("rl-training", {"rl-training": ""}),
        (("a", "b:1=2"), {"a": "", "b": "1=2"}),
        ({"model": "tiny"}, {"model": "tiny"}),
        (None, {}),
    ],
)
def test_tags_are_normalised(tags: Any, expected: dict[str, str]) -> None:
    assert _tags.parse(tags) == expected


@pytest.mark.parametrize(
    "tags",
    ["", ":1", "a b:1", "sandboxkit.owner:1", {"a": 1}, ("a:1", "a:2"), [3], "a:\n", "k" * 64],
)
def test_bad_tags_are_refused(tags: Any) -> None:
    with pytest.raises(ConfigurationError):
        _tags.parse(tags)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ("ls -l", r"\['sh', '-c', 'ls -l'\]"),
        (b"ls", "not the string"),
        ([], "empty"),
        ([""], "empty"),
        (["ls", 3], "holds 3"),
        (["a\0b"], "NUL"),
        (["echo", "x" * 200_000], "200000 bytes"),
        (["echo", *["x" * 100_000] * 11], "stdin or a file"),
        (["\ud800"], "encoded"),
    ],
)
def test_bad_argv_is_refused(argv: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        _arguments.argv(argv)


@pytest.mark.parametrize("timeout", [0, -1, math.inf, math.nan, True, "3"])
def test_bad_timeouts_are_refused(timeout: Any) -> None:
    with pytest.raises(ConfigurationError, match="timeout="):
        _arguments.timeout(timeout)


@pytest.mark.parametrize("path", ["", "a", "./a", "/a/../b", "..", "/a\0", 3])
def test_bad_paths_are_refused(path: Any) -> None:
    with pytest.raises(ConfigurationError):
        _arguments.path(path)


@pytest.mark.parametrize(
    "options",
    [
        {"imagee": "x"},
        {"image": ""},
        {"cpus": 0},
        {"memory_mb": 1.5},
        {"memory_mb": -1},
        {"pids": True},
        {"lifetime": 0},
        {"lifetime": math.inf},
        {"network": "host"},
        {"profile": "loose"},
        {"workdir": "here"},
        {"env": {"A=B": "1"}},
        {"env": {"A": 1}},
        {"files": {"relative": b""}},
        {"files": {"/a": 3}},
        {"command": "true"},
        {"detach": "yes"},
        {"detach": True, "lifetime": None},
    ],
)
def test_bad_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        _spec.build(SandboxSpec(), options)


def test_overrides_merge_tags_and_env_and_replace_the_rest() -> None:
    base = _spec.build(SandboxSpec(), {"tags": "a:1", "env": {"X": "1"}, "pids": 10})
    spec = _spec.build(base, {"tags": "b:2", "env": {"Y": "2"}, "pids": 20})
    assert spec.tags == {"a": "1", "b": "2"}
    assert spec.env == {"X": "1", "Y": "2"}
    assert spec.pids == 20


def test_secrets_are_not_in_the_repr() -> None:
    assert "hunter2" not in repr(_spec.build(SandboxSpec(), {"secrets": {"KEY": "hunter2"}}))


def test_an_unknown_provider_is_named_with_the_known_ones() -> None:
    with pytest.raises(
        ConfigurationError, match=r"'dokcer' \(did you mean 'docker'\?\); installed are .*local"
    ):
        Session(provider="dokcer")


def test_bad_calls_are_refused_before_the_sandbox_starts() -> None:
    with Session(FakeProvider()) as session:
        sandbox = session.sandbox()
        for call in (
            lambda: sandbox.exec("true"),
            lambda: sandbox.exec(["true"], timeout=0),
            lambda: sandbox.exec(["true"], cwd="here"),
            lambda: sandbox.exec(["true"], output_limit=-1),
            lambda: sandbox.read_file("relative"),
            lambda: sandbox.upload("/does/not/exist/here", "/workspace/x"),
            lambda: sandbox.renew(-1),
            lambda: session.adopt(sandbox),
        ):
            with pytest.raises(ConfigurationError):
                call()
        assert sandbox.id is None
