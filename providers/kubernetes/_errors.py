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
from sandboxkit.providers._error_rules import ErrorRule, Failure, apply_rules, rules_for

NAME = "kubernetes"
_LONGEST = 600
_NO_REASON = "no reason"
_ADDRESS = "is this the address of a Kubernetes API server?"


class Refusal(Exception):
    """An error response, or a watch's ERROR event; it becomes the `__cause__` of the typed error."""

    def __init__(self, status: int, body: str, retry_after: str | None = None) -> None:
        status_body = _parsed(body)
        self.status = status
        """The HTTP status."""
        self.reason = str(status_body.get("reason") or "")
        """The reason in the Status object: AlreadyExists, Conflict, NotFound, Forbidden, ..."""
        self.message = str(status_body.get("message") or body.strip() or "no explanation")[
            :_LONGEST
        ]
        """The server's message."""
        details = status_body.get("details")
        details = details if isinstance(details, dict) else {}
        self.kind = str(details.get("kind") or "")
        """The resource concerned, such as "pods"; "" if the response is not a Kubernetes Status."""
        meta = status_body.get("metadata")
        self.go_on = str(meta.get("continue") or "") if isinstance(meta, dict) else ""
        """The continue token for a list whose previous token has expired."""
        self.retry_after = _seconds(retry_after, details.get("retryAfterSeconds"))
        super().__init__(f"{self.message} (HTTP {status})")


def refusal_of(error: BaseException) -> Refusal | None:
    """Return the response that a typed error was made from; None if there was no response."""
    return error.__cause__ if isinstance(error.__cause__, Refusal) else None


# Any: the server's JSON is untyped.
def _parsed(body: str) -> dict[str, Any]:
    try:
        parsed = json.loads(body)
    except ValueError:
        return {}
    return parsed if isinstance(parsed, dict) and parsed.get("kind") == "Status" else {}


def _seconds(header: str | None, detail: object) -> float | None:
    for value in (header, detail):
        try:
            seconds = float(str(value))
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


def _missing_right(text: str) -> str:
    match = _RBAC.search(text)
    if match is None:
        return "the user of the kubeconfig or service account has no right to it"
    rule = (
        f'{{apiGroups: ["{match["group"]}"], resources: ["{match["resource"]}"], '
        f'verbs: ["{match["verb"]}"]}}'
    )
    where = f"a Role in namespace {match['namespace']!r}" if match["namespace"] else "a ClusterRole"
    return f"add the rule {rule} to {where} that is bound to {match['user']!r}"


# Kubernetes answers 403 for much that is no missing permission.
_RULES = (
    ErrorRule(
        (401,),
        AuthenticationError,
        "log in to the cluster again (`kubectl auth can-i create pods` shows whether it works)",
    ),
    *rules_for(
        (403,),
        (
            CapacityError,
            "the namespace's ResourceQuota is used up: wait for sandboxes to end, or raise it",
            r"exceeded quota",
        ),
        (
            ConfigurationError,
            "the namespace's ResourceQuota requires them: give cpus and memory_mb",
            r"failed quota: .*must specify",
        ),
        (
            ConfigurationError,
            "the namespace's LimitRange does not allow this size",
            r"(maximum|minimum) .+ usage per |max limit to request ratio",
        ),
        (
            ConfigurationError,
            "the namespace allows only safer pods: use no_network='policy', security='restricted', or "
            "another namespace",
            r"violates PodSecurity|pod security policy|PodSecurityPolicy",
        ),
        (
            ConfigurationError,
            "name a runtime class that `kubectl get runtimeclass` shows",
            r'RuntimeClass ".*" not found',
        ),
        (
            ConfigurationError,
            "name a priority class that `kubectl get priorityclass` shows",
            r"no PriorityClass with name",
        ),
        (
            ProviderUnavailableError,
            "a new namespace gets its service account a moment later: try again",
            r"error looking up service account \S+/default: ",
        ),
        (
            ConfigurationError,
            "name a service account that the namespace has",
            r"error looking up service account",
        ),
        (
            ConfigurationError,
            "the namespace is being deleted: use another one",
            r"because it is being terminated",
        ),
        (
            ConfigurationError,
            "the cluster's own admission rules refuse it",
            r"admission webhook .* denied|ValidatingAdmissionPolicy",
        ),
    ),
    ErrorRule((403,), AuthenticationError, _missing_right),
    # A proxy in between may have sent this, so it does not prove that anything is gone.
    ErrorRule((404,), ProviderUnavailableError, _ADDRESS, needed={_NO_REASON}),
    ErrorRule(
        (404,),
        ConfigurationError,
        "create the namespace, or name another one",
        needed={"namespaces"},
    ),
    ErrorRule((404,), SandboxNotFoundError, needed={"pods"}),
    ErrorRule((404,), SandboxNotFoundError, needed={"sandboxclaims"}),
    ErrorRule(range(400), ConfigurationError, _ADDRESS),
    ErrorRule((400, 404, 405, 406, 413, 415, 422), ConfigurationError),
    ErrorRule((507,), CapacityError),
    # 408, 409, 410, 429 and 5xx: the same call may succeed later.
    ErrorRule((), ProviderUnavailableError),
)
"""The errors for the server's statuses, reasons, and kinds of the resource concerned."""


def error_of(refusal: Refusal, what: str, *, sandbox_id: str | None = None) -> SandboxError:
    """Return the typed error for a refusal; `what` completes "Kubernetes cannot ..."."""
    text = f"Kubernetes cannot {what}: {refusal}"
    codes = {refusal.status, refusal.kind, refusal.reason or _NO_REASON}
    failure = Failure(text, refusal.message, codes, sandbox_id, refusal.retry_after)
    return apply_rules(failure, _RULES)


def connection_error(error: BaseException, what: str, server: str) -> SandboxError:
    """Return the typed error for a call that got no response."""
    text = f"Kubernetes cannot {what}: "
    if isinstance(error, aiohttp.ClientConnectorCertificateError | ssl.SSLCertVerificationError):
        return ConfigurationError(
            f"{text}the certificate of {server} is not trusted ({error}); see "
            "certificate-authority in the kubeconfig"
        )
    if isinstance(error, TimeoutError):
        reason = f"{server} does not answer in time"
    else:
        reason = f"no answer of {server} ({str(error) or type(error).__name__})"
    return ProviderUnavailableError(text + reason)
