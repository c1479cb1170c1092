"""The RBAC permissions that the provider needs in its namespace, and a check for missing ones."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sandboxkit.providers.kubernetes._api import Api

_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


@dataclass(frozen=True, slots=True)
class Right:
    """The verbs that are needed on one kind of resource."""

    resource: str
    verbs: tuple[str, ...]
    group: str = ""

    def each(self) -> "Iterator[tuple[str, Right]]":
        """Yield each verb separately, together with this right."""
        for verb in self.verbs:
            yield verb, self


ALWAYS = (
    Right("pods", ("create", "delete", "get", "list", "patch", "watch")),
    # Older servers authorize exec as "get"; newer ones require "create" as well.
    Right("pods/exec", ("create", "get")),
    Right("configmaps", ("create",)),
    Right("events", ("list",)),
)
POLICY = Right("networkpolicies", ("create",), "networking.k8s.io")
"""Also needed with no_network="policy"."""
CLAIMING = (
    Right(
        "sandboxclaims",
        ("create", "delete", "get", "list", "patch", "watch"),
        "extensions.agents.x-k8s.io",
    ),
    Right("pods", ("delete", "get")),
    *(each for each in ALWAYS if each.resource in ("pods/exec", "events")),
)
"""All that is needed with `claims`."""


def needed(*, by_policy: bool = False, claims: bool = False) -> tuple[Right, ...]:
    """Return the rights that a provider with these options needs."""
    return CLAIMING if claims else (*ALWAYS, *((POLICY,) if by_policy else ()))


def commands(lacking: Sequence[str], namespace: str) -> str:
    """Return the kubectl commands that give a user the rights which `missing` returned.

    There is a Role and a RoleBinding for each resource, so that they change no Role that exists.
    """
    verbs: dict[str, list[str]] = {}
    for each in lacking:
        verb, _, resource = each.partition(" ")
        verbs.setdefault(resource, []).append(verb)
    groups = {
        each.resource: f".{each.group}" if each.group else ""
        for each in (*CLAIMING, *ALWAYS, POLICY)
    }
    lines: list[str] = []
    for resource, wanted in verbs.items():
        name = f"sandboxkit-{'-'.join(wanted)}-{resource.replace('/', '-')}"
        kind, _, part = resource.partition("/")
        full = kind + groups[resource] + (f"/{part}" if part else "")
        lines += [
            f"kubectl create role {name} -n {namespace} --verb={','.join(wanted)} --resource={full}",
            f"kubectl create rolebinding {name} -n {namespace} --role={name} --user=USER",
        ]
    return "\n".join(lines)


# Any: a manifest is JSON.
def role(name: str, *, by_policy: bool = False, claims: bool = False) -> dict[str, Any]:
    """Return the manifest of the smallest Role with which the provider works."""
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "Role",
        "metadata": {"name": name},
        "rules": [
            {"apiGroups": [each.group], "resources": [each.resource], "verbs": list(each.verbs)}
            for each in needed(by_policy=by_policy, claims=claims)
        ],
    }


async def missing(api: Api, rights: Sequence[Right]) -> list[str]:
    """Return which of these permissions the credentials lack, such as "create pods/exec", in order."""
    asked = [pair for right in rights for pair in right.each()]
    allowed: dict[int, bool] = {}

    async def ask(number: int, verb: str, right: Right) -> None:
        resource, _, subresource = right.resource.partition("/")
        attributes = {
            "namespace": api.namespace,
            "verb": verb,
            "group": right.group,
            "resource": resource,
            "subresource": subresource,
        }
        body = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": attributes},
        }
        review = await api.call("POST", _REVIEWS, body, what="list the rights of these credentials")
        allowed[number] = bool(review["status"].get("allowed"))

    await api.open()
    for number, (verb, right) in enumerate(asked):
        await ask(number, verb, right)
    return [f"{verb} {right.resource}" for n, (verb, right) in enumerate(asked) if not allowed[n]]
