"""The Pod Security Standards as Kubernetes publishes them, for manifests of pods."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

# Any, here and below: a manifest is JSON.
Pod = Mapping[str, Any]
Rule = Callable[[Pod], bool]

_BASELINE_CAPABILITIES = {
    "AUDIT_WRITE",
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "MKNOD",
    "NET_BIND_SERVICE",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYS_CHROOT",
}
_SYSCTLS = {
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.ping_group_range",
    "net.ipv4.tcp_syncookies",
}
_VOLUMES = {
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "persistentVolumeClaim",
    "projected",
    "secret",
}
_SELINUX_TYPES = {None, "", "container_t", "container_init_t", "container_kvm_t"}


def containers(pod: Pod) -> list[Pod]:
    """All of a pod's containers."""
    kinds = ("containers", "initContainers", "ephemeralContainers")
    return [each for kind in kinds for each in pod["spec"].get(kind, ())]


def contexts(pod: Pod) -> Iterator[Pod]:
    """The security contexts of the pod and of its containers."""
    yield pod["spec"].get("securityContext") or {}
    for each in containers(pod):
        yield each.get("securityContext") or {}


def _all(pod: Pod, holds: Rule) -> bool:
    return all(holds(context) for context in contexts(pod))


def _capabilities(context: Pod, which: str) -> set[str]:
    return set((context.get("capabilities") or {}).get(which) or ())


def _effective(pod: Pod, field: str) -> list[Any]:
    """Return the field of each container's security context, or the pod's where a container has none."""
    own, *inner = contexts(pod)
    return [context.get(field, own.get(field)) for context in inner]


BASELINE: dict[str, Rule] = {
    "host process": lambda pod: _all(
        pod, lambda context: not (context.get("windowsOptions") or {}).get("hostProcess")
    ),
    "host namespaces": lambda pod: (
        not any(pod["spec"].get(name) for name in ("hostNetwork", "hostPID", "hostIPC"))
    ),
    "privileged": lambda pod: _all(pod, lambda context: not context.get("privileged")),
    "capabilities": lambda pod: _all(
        pod, lambda context: _capabilities(context, "add") <= _BASELINE_CAPABILITIES
    ),
    "host paths": lambda pod: (
        not any("hostPath" in volume for volume in pod["spec"].get("volumes", ()))
    ),
    "host ports": lambda pod: (
        not any(port.get("hostPort") for each in containers(pod) for port in each.get("ports", ()))
    ),
    "AppArmor": lambda pod: (
        not any(
            name.startswith("container.apparmor.security.beta.kubernetes.io/")
            and value == "unconfined"
            for name, value in pod["metadata"].get("annotations", {}).items()
        )
    ),
    "SELinux": lambda pod: _all(
        pod,
        lambda context: (
            (context.get("seLinuxOptions") or {}).get("type") in _SELINUX_TYPES
            and not (context.get("seLinuxOptions") or {}).get("user")
            and not (context.get("seLinuxOptions") or {}).get("role")
        ),
    ),
    "proc mount": lambda pod: _all(
        pod, lambda context: context.get("procMount", "Default") == "Default"
    ),
    "seccomp": lambda pod: _all(
        pod, lambda context: (context.get("seccompProfile") or {}).get("type") != "Unconfined"
    ),
    "sysctls": lambda pod: _all(
        pod, lambda context: {each["name"] for each in context.get("sysctls", ())} <= _SYSCTLS
    ),
}

RESTRICTED: dict[str, Rule] = {
    **BASELINE,
    "volume types": lambda pod: all(
        set(volume) - {"name"} <= _VOLUMES for volume in pod["spec"].get("volumes", ())
    ),
    "privilege escalation": lambda pod: all(
        (each.get("securityContext") or {}).get("allowPrivilegeEscalation") is False
        for each in containers(pod)
    ),
    "non-root": lambda pod: all(each is True for each in _effective(pod, "runAsNonRoot")),
    "non-root user": lambda pod: _all(pod, lambda context: context.get("runAsUser") != 0),
    "seccomp is set": lambda pod: all(
        (each or {}).get("type") in ("RuntimeDefault", "Localhost")
        for each in _effective(pod, "seccompProfile")
    ),
    "all capabilities dropped": lambda pod: all(
        "ALL" in _capabilities(each.get("securityContext") or {}, "drop")
        and _capabilities(each.get("securityContext") or {}, "add") <= {"NET_BIND_SERVICE"}
        for each in containers(pod)
    ),
}


def broken(pod: Pod, rules: Mapping[str, Rule]) -> list[str]:
    """The rules that a manifest breaks."""
    return [name for name, holds in rules.items() if not holds(pod)]
