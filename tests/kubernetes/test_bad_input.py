"""Options that cannot work are refused by name, with a remedy, before anything is created."""

import os
import tomllib
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from sandboxkit import ConfigurationError, Session
from sandboxkit.providers.kubernetes import KubernetesProvider
from sandboxkit.providers.kubernetes._policy_probe import verdict
from sandboxkit.types import SandboxSpec

# Any, here and below: one type per option.
_CASES: dict[str, list[dict[str, Any]]] = tomllib.loads(
    Path(__file__).with_name("bad_input.toml").read_text()
)


def provider(**options: Any) -> KubernetesProvider:
    # Nobody answers there, which shows that nobody is asked.
    return KubernetesProvider(kubeconfig="/nonexistent/kubeconfig", **options)


def _refused(spec: dict[str, Any], options: dict[str, Any]) -> str:
    with pytest.raises(ConfigurationError, match="cannot honour") as caught:
        provider(**options).check(SandboxSpec(**spec))
    return str(caught.value)


@pytest.mark.parametrize("case", _CASES["spec"], ids=lambda case: case["named"])
def test_options_that_a_pod_lacks_are_refused(case: dict[str, Any]) -> None:
    assert case["named"] in _refused(case["spec"], case.get("options", {}))


@pytest.mark.parametrize(
    ("named", "options"),
    [
        ("env='A'", {"env": {"A": "\ud800"}}),
        ("tags='a'", {"tags": {"a": "\ud800"}}),
        ("tags='900 tags'", {"tags": {f"tag-{n}": "v" * 256 for n in range(900)}}),
    ],
    ids=["env", "tag", "tags"],
)
def test_text_that_no_manifest_holds_is_refused(named: str, options: dict[str, Any]) -> None:
    assert named in _refused(options, {})


@pytest.mark.parametrize("case", _CASES["options"], ids=lambda case: case["named"])
def test_options_of_the_provider(case: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError) as caught:
        provider(**case["options"])
    assert case["named"] in str(caught.value)


@pytest.mark.parametrize("case", _CASES["variables"], ids=lambda case: case["variable"])
def test_an_invalid_variable_is_refused(case: dict[str, str]) -> None:
    with (
        mock.patch.dict(os.environ, {case["variable"]: case["named"].strip("'")}),
        pytest.raises(ConfigurationError, match=case["named"]),
    ):
        Session("kubernetes")


def test_an_argument_overrides_its_variable() -> None:
    with mock.patch.dict(os.environ, {"SANDBOXKIT_KUBERNETES_SECURITY": "restricted"}):
        provider().check(SandboxSpec(user="1000"))
        provider(security="baseline").check(SandboxSpec(user="root"))
        assert "restricted" in _refused({"user": "root"}, {})


@pytest.mark.parametrize(
    ("free", "denied", "expected"),
    [
        (True, True, "does not enforce network policies"),
        (False, True, "does not enforce network policies"),
        (False, False, "could not be verified"),
    ],
)
def test_two_probe_pods_prove_a_policy(free: bool, denied: bool, expected: str) -> None:
    assert verdict(free=True, denied=False) is None
    refusal = str(verdict(free=free, denied=denied))
    assert expected in refusal
    assert "network='none'" in refusal
