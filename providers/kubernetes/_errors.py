"""Maps the API server's error responses to sandboxkit's errors; ANSWERS.md has the table."""

import json
import math
import re
import ssl
from typing import Any

import aiohttp

from sandboxkit.errors import (
    AuthenticationError,
    CapacityError,
    ConfigurationError,
    ProviderUnavailableError,
    SandboxError,
    SandboxNotFoundError,
)

__all__ = ["NAME", "Refusal", "connection_error", "error_of", "refusal_of"]

NAME = "kubernetes"
_LONGEST = 600


class Refusal(Exception):
    """An error response, or a watch's ERROR event; it becomes the `__cause__` of the typed error."""

    def __init__(self, status: int, body: str, retry_after: str | None = None) -> None:
        said = _parsed(body)
        self.status = status
        """The HTTP status."""
        self.reason = str(said.get("reason") or "")
        """The reason in the Status object: AlreadyExists, Conflict, NotFound, Forbidden, ..."""
        self.said = str(said.get("message") or body.strip() or "no explanation")[:_LONGEST]
        """The server's message."""
        details = said.get("details")
        details = details if isinstance(details, dict) else {}
        self.kind = str(details.get("kind") or "")
        """The resource concerned, such as "pods"; "" if the response is not a Kubernetes Status."""
        meta = said.get("metadata")
        self.go_on = str(meta.get("continue") or "") if isinstance(meta, dict) else ""
        """The continue token for a list whose previous token has expired."""
        self.retry_after = _seconds(retry_after, details.get("retryAfterSeconds"))
        super().__init__(f"{self.said} (HTTP {status})")


def refusal_of(error: BaseException) -> Refusal | None:
    """Return the response that a typed error was made from; None if there was no response."""
    return error.__cause__ if isinstance(error.__cause__, Refusal) else None


# Any: the server's JSON is untyped.
def _parsed(body: str) -> dict[str, Any]:
    try:
        said = json.loads(body)
    except ValueError:
        return {}
    return said if isinstance(said, dict) and said.get("kind") == "Status" else {}


def _seconds(header: str | None, detail: object) -> float | None:
    for said in (header, detail):
        try:
            seconds = float(str(said))
        except ValueError:
            continue
        if math.isfinite(seconds) and seconds >= 0:
            return seconds
    return None


_RBAC = re.compile(
    r'User "(?P<user>[^"]*)" cannot (?P<verb>\w+) resource "(?P<resource>[^"]+)"'
    r' in API group "(?P<group>[^"]*)"(?: in the namespace "(?P<namespace>[^"]+)")?'
)
"""The server's message about a missing RBAC permission."""

# Kubernetes answers 403 for all of these; a 403 that matches none is a missing permission.
_ADMISSION: tuple[tuple[re.Pattern[str], type[SandboxError], str], ...] = tuple(
    (re.compile(pattern, re.IGNORECASE), kind, remedy)
    for pattern, kind, remedy in (
        (
            r"exceeded quota",
            CapacityError,
            "the namespace's ResourceQuota is used up: wait for sandboxes to end, or raise it",
        ),
        (
            r"failed quota: .*must specify",
            ConfigurationError,
            "the namespace's ResourceQuota wants these named: give cpus and memory_mb",
        ),
        (
            r"(maximum|minimum) .+ usage per |max limit to request ratio",
            ConfigurationError,
            "the namespace's LimitRange does not allow this size",
        ),
        (
            r"violates PodSecurity|pod security policy|PodSecurityPolicy",
            ConfigurationError,
            "the namespace allows only safer pods: use mode='restricted', or another namespace",
        ),
        (
            r'RuntimeClass ".*" not found',
            ConfigurationError,
            "name a runtime class that `kubectl get runtimeclass` shows",
        ),
        (
            r"error looking up service account \S+/default: ",
            ProviderUnavailableError,
            "a namespace gets its service account a moment after it was made: try again",
        ),
        (
            r"error looking up service account",
            ConfigurationError,
            "name a service account that the namespace has",
        ),
        (
            r"because it is being terminated",
            ConfigurationError,
            "the namespace is being deleted: use another one",
        ),
        (
            r"admission webhook .* denied|ValidatingAdmissionPolicy",
            ConfigurationError,
            "the cluster's own rules refuse it",
        ),
    )
)


def error_of(refusal: Refusal, what: str, *, sandbox_id: str | None = None) -> SandboxError:
    """Return the typed error for a refusal; `what` completes "Kubernetes cannot ..."."""
    text = f"Kubernetes cannot {what}: {refusal}"

    def made(kind: type[SandboxError], remedy: str = "") -> SandboxError:
        said = f"{text}; {remedy}" if remedy else text
        return kind(said, provider=NAME, sandbox_id=sandbox_id)

    status = refusal.status
    if status == 401:
        return made(
            AuthenticationError,
            "log in to the cluster again (`kubectl auth can-i create pods` shows whether it works)",
        )
    if status == 403:
        for pattern, kind, remedy in _ADMISSION:
            if pattern.search(refusal.said):
                return made(kind, remedy)
        return made(AuthenticationError, _missing_right(refusal.said))
    if status == 404 and not refusal.reason:
        # A proxy in between may have sent this, so it does not prove that anything is gone.
        return made(ProviderUnavailableError, "is that the address of a Kubernetes API server?")
    if status == 404 and refusal.kind == "namespaces":
        return made(ConfigurationError, "create the namespace, or name another one")
    if status == 404 and refusal.kind == "pods":
        if sandbox_id is not None:
            text = f"no sandbox {sandbox_id!r}; it may have ended"
        return made(SandboxNotFoundError)
    if status == 404:
        return made(ConfigurationError)
    if status < 400:
        return made(ConfigurationError, "is this the address of a Kubernetes API server?")
    if status in (400, 405, 406, 413, 415, 422):
        return made(ConfigurationError)
    if status == 507:
        return made(CapacityError)
    # 408, 409, 410, 429 and 5xx: the same call may succeed later.
    return ProviderUnavailableError(
        text, provider=NAME, sandbox_id=sandbox_id, retry_after=refusal.retry_after
    )


def _missing_right(said: str) -> str:
    match = _RBAC.search(said)
    if match is None:
        return "whoever the kubeconfig or service account names has no right to it"
    rule = (
        f'{{apiGroups: ["{match["group"]}"], resources: ["{match["resource"]}"], '
        f'verbs: ["{match["verb"]}"]}}'
    )
    where = f"a Role in namespace {match['namespace']!r}" if match["namespace"] else "a ClusterRole"
    return f"add the rule {rule} to {where} that is bound to {match['user']!r}"


def connection_error(error: BaseException, what: str, server: str) -> SandboxError:
    """Return the typed error for a call that got no response."""
    text = f"Kubernetes cannot {what}: "
    if isinstance(error, aiohttp.ClientConnectorCertificateError | ssl.SSLCertVerificationError):
        return ConfigurationError(
            f"{text}the certificate of {server} is not trusted ({error}); see "
            "certificate-authority in the kubeconfig",
            provider=NAME,
        )
    if isinstance(error, TimeoutError):
        said = f"{server} does not answer in time"
    else:
        said = f"no answer of {server} ({str(error) or type(error).__name__})"
    return ProviderUnavailableError(text + said, provider=NAME)
