"""Sandboxes in a Kubernetes cluster: pods with our agent as their PID 1, or claims on a warm pool."""

from sandboxkit.providers.kubernetes import _warm_pool as _warm_pool
from sandboxkit.providers.kubernetes._provider import KubernetesProvider

__all__ = ["KubernetesProvider"]
