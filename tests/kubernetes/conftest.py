"""A real cluster (scripts/kube.sh up), or no test at all."""

from collections.abc import AsyncIterator, Iterator

import pytest

from sandboxkit.providers.kubernetes import KubernetesProvider
from tests.docker.boxes import Boxes
from tests.kubernetes.cluster import STATE, Cluster, view
from tests.kubernetes.here import new_namespace, require_cluster


@pytest.fixture(scope="session")
def found_cluster() -> Cluster:
    """The cluster. Without it the test is skipped, or fails where CI requires Kubernetes."""
    return require_cluster()


@pytest.fixture
def cluster(found_cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """The cluster, `KUBECONFIG` pointing to it, which nobody disturbs during the test."""
    monkeypatch.setenv("KUBECONFIG", str(found_cluster.kubeconfig))
    with found_cluster.held():
        yield found_cluster


@pytest.fixture
def own_cluster(found_cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """The cluster for one test alone, which may stop, kill and freeze its programs.

    Ask for it instead of `cluster`, never with it: the two would wait for each other.
    """
    monkeypatch.setenv("KUBECONFIG", str(found_cluster.kubeconfig))
    if not found_cluster.is_of_script:
        pytest.skip("only the cluster of scripts/kube.sh can be disturbed")
    with found_cluster.held(alone=True):
        yield found_cluster
        found_cluster.wait_until_ready()


@pytest.fixture
def user(found_cluster: Cluster) -> Cluster:
    """The cluster as seen by a user who may do nothing."""
    if not found_cluster.is_of_script:
        pytest.skip("only scripts/kube.sh makes a user without rights")
    return view(STATE / "kubeconfig-user")


@pytest.fixture
def namespace() -> Iterator[str]:
    """A namespace of this test's own, which providers without arguments use."""
    with new_namespace() as name:
        yield name


@pytest.fixture
def room(namespace: str) -> str:
    return namespace


@pytest.fixture
async def boxes(
    cluster: Cluster, room: str, anyio_backend: str
) -> AsyncIterator[Boxes[KubernetesProvider]]:
    """Sandboxes and providers, which are removed in the end."""
    async with Boxes(KubernetesProvider) as boxes:
        yield boxes


@pytest.fixture
async def provider(room: str, anyio_backend: str) -> AsyncIterator[KubernetesProvider]:
    """A provider with nothing but the variables' settings."""
    provider = KubernetesProvider()
    yield provider
    await provider.aclose()
