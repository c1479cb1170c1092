"""Sandboxes as pods of a Kubernetes cluster, each with our agent as its PID 1."""

from sandboxkit.providers.kubernetes._provider import KubernetesProvider

__all__ = ["KubernetesProvider"]
