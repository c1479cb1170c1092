"""Options that cannot work are refused by name, with a remedy, before anything is created."""

import os
from typing import Any
from unittest import mock

import pytest

from sandboxkit import ConfigurationError, Session
from sandboxkit.providers.kubernetes import KubernetesProvider
from sandboxkit.providers.kubernetes._policy_probe import verdict
from sandboxkit.types import SandboxSpec

# Nobody answers there, which shows that nobody is asked.
NOWHERE = "/nonexistent/kubeconfig"


# Any, here and below: one type per option.
def provider(**options: Any) -> KubernetesProvider:
    return KubernetesProvider(kubeconfig=NOWHERE, **options)


@pytest.mark.parametrize(
    ("named", "options"),
    [
        ("pids=64", {"pids": 64}),
        ("memory_mb=16", {"memory_mb": 16}),
        ("cpus=0.001", {"cpus": 0.001}),
        ("disk_mb=1", {"disk_mb": 1}),
        ("gpu='all'", {"gpu": "all"}),
        ("gpu='0'", {"gpu": "0"}),
        ("gpu='device=0'", {"gpu": "device=0"}),
        ("user='root'", {"user": "root", "profile": "strict"}),
        ("user='0:0'", {"user": "0:0", "profile": "strict"}),
        ("workdir='/'", {"workdir": "/", "profile": "strict"}),
        ("workdir='/a:b'", {"workdir": "/a:b", "profile": "strict"}),
        ("mounts='/data'", {"mounts": {"/data": "volume:pip"}}),
        ("env='A'", {"env": {"A": "\ud800"}}),
        ("tags='a'", {"tags": {"a": "\ud800"}}),
        ("tags='900 tags'", {"tags": {f"tag-{n}": "v" * 256 for n in range(900)}}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_options_that_kubernetes_lacks_are_refused(named: str, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="cannot honour") as caught:
        provider().check(SandboxSpec(**options))
    assert named in str(caught.value)


def test_a_mount_point_has_no_colon() -> None:
    with pytest.raises(ConfigurationError, match="mounts='/a:b': Kubernetes takes no mount point"):
        provider(storage_claim="claim").check(SandboxSpec(mounts={"/a:b": "volume:pip"}))


def test_pids_names_the_kubelets_setting() -> None:
    with pytest.raises(ConfigurationError, match="podPidsLimit"):
        provider().check(SandboxSpec(pids=64))


@pytest.mark.parametrize(
    ("named", "options"),
    [
        ("user='root'", {"user": "root"}),
        ("user='sandbox'", {"user": "sandbox"}),
        ("user='0'", {"user": "0"}),
        ("user='4294967295'", {"user": "4294967295"}),
        ("workdir='/'", {"workdir": "/"}),
    ],
)
def test_options_that_restricted_pods_lack_are_refused(named: str, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="cannot honour") as caught:
        provider(security="restricted").check(SandboxSpec(**options))
    assert named in str(caught.value)


@pytest.mark.parametrize(
    ("named", "options"),
    [
        ("security='privileged'", {"security": "privileged"}),
        ("no_network='maybe'", {"no_network": "maybe"}),
        ("no_network='policy'", {"no_network": "interfaces", "security": "restricted"}),
        ("image_pull_policy='never'", {"image_pull_policy": "never"}),
        ("kubernetes.io/arch", {"node_selector": {"kubernetes.io/arch": "riscv64"}}),
        ("lease=0", {"lease": 0}),
        ("lease=nan", {"lease": float("nan")}),
        ("max_lifetime=0", {"max_lifetime": 0}),
        ("max_lifetime=1e+20", {"max_lifetime": 1e20}),
        ("requests['cpu']='much'", {"requests": {"cpu": "much"}}),
        ("runtime_class='No Name'", {"runtime_class": "No Name"}),
        ("priority_class='A'", {"priority_class": "A"}),
        ("queue='A B'", {"queue": "A B"}),
        ("storage_claim='A B'", {"storage_claim": "A B"}),
        ("snapshot_registry='registry:5000'", {"snapshot_registry": "registry:5000"}),
        ("queue='aaaa", {"queue": "a" * 64}),
        ("topology_spread='a b'", {"topology_spread": "a b"}),
        ("image_pull_secrets='A'", {"image_pull_secrets": ["A"]}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_options_of_the_provider(named: str, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError) as caught:
        provider(**options)
    assert named in str(caught.value)


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("SANDBOXKIT_KUBERNETES_SECURITY", "privileged"),
        ("SANDBOXKIT_KUBERNETES_NO_NETWORK", "yes"),
        ("SANDBOXKIT_KUBERNETES_LEASE", "a minute"),
    ],
)
def test_an_invalid_variable_is_refused(variable: str, value: str) -> None:
    with (
        mock.patch.dict(os.environ, {variable: value}),
        pytest.raises(ConfigurationError, match=repr(value)),
    ):
        Session("kubernetes")


def test_an_argument_overrides_its_variable() -> None:
    with mock.patch.dict(os.environ, {"SANDBOXKIT_KUBERNETES_SECURITY": "restricted"}):
        provider().check(SandboxSpec(user="1000"))
        provider(security="baseline").check(SandboxSpec(user="root"))
        with pytest.raises(ConfigurationError, match="restricted"):
            provider().check(SandboxSpec(user="root"))


@pytest.mark.parametrize(
    ("free", "denied", "expected"),
    [
        (True, False, None),
        (True, True, "does not enforce network policies"),
        (False, True, "does not enforce network policies"),
        (False, False, "could not be verified"),
    ],
)
def test_two_probe_pods_prove_a_policy(free: bool, denied: bool, expected: str | None) -> None:
    refusal = verdict(free=free, denied=denied)
    if expected is None:
        assert refusal is None
    else:
        assert expected in str(refusal)
        assert "network='none'" in str(refusal)
