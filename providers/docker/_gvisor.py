"""gVisor as a daemon's runtime: how it is found, and what differs from runc in its sandboxes."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace

from sandboxkit.errors import ConfigurationError
from sandboxkit.providers import _rules
from sandboxkit.providers._gvisor import RULES, is_gvisor
from sandboxkit.providers._rules import Rule
from sandboxkit.providers.docker._daemon import DaemonInfo
from sandboxkit.types import SandboxSpec

REMEDY = "install runsc, run: runsc install -- --oci-seccomp, and reload the daemon"


# /proc/version of every gVisor has one of these texts; new ones are expected to name themselves.
_VERSIONS = (b"#1 SMP Sun Jan 10 15:06:54 PST 2016", b"gvisor")
_LINUX = ("runc", "crun")  # programs that are known to use the machine's kernel


class OtherKernelError(ConfigurationError):
    """A sandbox has another kernel than its runtime's program said: settle its spec again."""


@dataclass(frozen=True, slots=True)
class Runtimes:
    """Which runtimes of a daemon are gVisor: by their programs, and by the kernels of their sandboxes.

    A program that is a wrapper of another name is known only by the first sandbox that starts with it.
    """

    _seen: dict[tuple[str, ...], bool] = field(default_factory=dict)
    """Whether the kernel of a runtime's first sandbox was gVisor's, by its name, program and arguments."""

    def gvisor(self, info: DaemonInfo) -> str | None:
        """Return the runtime for isolation="gvisor": the daemon's default, or the first by name; or None."""
        names = sorted(info.runtimes, key=lambda name: (name != info.default_runtime, name))
        return next((name for name in names if self._is_gvisor(name, info)), None)

    def settle(
        self, spec: SandboxSpec, runtime: str | None, info: DaemonInfo
    ) -> tuple[SandboxSpec, str | None]:
        """Return the spec, with the isolation that it gets, and the name of its runtime.

        `runtime` is the provider's own choice. Raises ConfigurationError if the daemon has no gVisor for
        isolation="gvisor", or for a spec that gVisor cannot honour.
        """
        name = runtime
        if name is None:
            name = self.gvisor(info) if is_gvisor(spec) else info.default_runtime
        # The provider's own choice may be a wrapper: its first sandbox shows whether it is gVisor.
        trusted = is_gvisor(spec) and runtime is not None and self._may_be_gvisor(runtime, info)
        if name is None or not (trusted or self._is_gvisor(name, info)):
            if is_gvisor(spec):
                raise ConfigurationError(
                    f"provider 'docker' cannot honour isolation='gvisor': the daemon's runtimes are "
                    f"{', '.join(info.runtimes)}, and runtime={runtime!r}; {REMEDY}"
                )
            return spec, runtime
        spec = replace(spec, isolation="gvisor")
        closed = any(
            each in ("--network=none", "-network=none") for each in info.runtimes.get(name, ())
        )
        offline = Rule(
            "network",
            f"the daemon starts the runtime {name!r} with --network=none",
            lambda spec: closed and spec.network != "none",
        )
        _rules.check(spec, (*RULES, offline), provider="docker")
        return spec, name

    async def prove(
        self,
        spec: SandboxSpec,
        runtime: str | None,
        info: DaemonInfo,
        version: Callable[[], Awaitable[bytes]],
    ) -> None:
        """Learn from a runtime's first sandbox; `version` reads /proc/version in it.

        `spec` and `runtime` are as `settle` returned them. Raises OtherKernelError if the sandbox has
        another kernel.
        """
        name = runtime or info.default_runtime
        defined = _defined(name, info)
        if defined not in self._seen:
            text = await version()
            self._seen[defined] = any(known in text for known in _VERSIONS)
        # Also for a sandbox whose spec was settled before another one showed the kernel.
        if self._seen[defined] != is_gvisor(spec):
            raise OtherKernelError(
                f"the runtime {name!r} does not have the kernel that its program's name says; give runtime="
            )

    def _is_gvisor(self, name: str, info: DaemonInfo) -> bool:
        """Whether a runtime is gVisor: its program is runsc, or its shim io.containerd.runsc.v1."""
        return self._seen.get(_defined(name, info), "runsc" in _program(name, info))

    def _may_be_gvisor(self, name: str, info: DaemonInfo) -> bool:
        known = any(each in _program(name, info) for each in _LINUX)
        return self._seen.get(_defined(name, info), not known)


def _defined(name: str, info: DaemonInfo) -> tuple[str, ...]:
    """Return a runtime's name, and its program or shim with the arguments, which may be unlisted."""
    return (name, *info.runtimes.get(name, (name,)))


def _program(name: str, info: DaemonInfo) -> list[str]:
    """Return the parts of the name of a runtime's program, or of its shim."""
    return _defined(name, info)[1].rpartition("/")[2].split(".")
