"""Local sandboxes with one wall taken out each: where a fake one would harm this machine."""

import asyncio
import functools
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from unittest import mock

from sandboxkit.provider import FirstCommand, Output
from sandboxkit.providers._agent import binary
from sandboxkit.providers.local import LocalProvider, _arguments, _layout, _provider
from sandboxkit.providers.local._provider import LocalBox
from sandboxkit.types import Command, Exit, SandboxSpec
from tests.conformance.changed import making

ROOT = Path(__file__).parents[2]

made: list[Path] = []
"""Folders that whoever uses these providers removes in the end."""


class Weakened(LocalProvider):
    """Starts bubblewrap with other options, and perhaps another agent."""

    def options(self, given: list[str]) -> list[str]:
        """What bubblewrap gets instead of `given`."""
        return given

    @asynccontextmanager
    async def weakness(self) -> AsyncGenerator[None]:
        """In force while a sandbox is made."""
        arguments: Callable[..., list[str]] = _arguments.arguments
        with mock.patch.object(
            _arguments, "arguments", lambda *args, **kw: self.options(arguments(*args, **kw))
        ):
            yield

    async def create(self, spec: SandboxSpec, first: FirstCommand | None = None) -> LocalBox:
        async with self.weakness():
            return await super().create(spec, first)


IgnoresThePidsLimit = making(lambda spec: replace(spec, pids=1000), LocalProvider)
"""A sandbox may start many more processes than was asked for."""
IgnoresTheMemoryLimit = making(lambda spec: replace(spec, memory_mb=4096), LocalProvider)
"""A sandbox may use much more memory than was asked for."""
IgnoresTheDiskLimit = making(lambda spec: replace(spec, disk_mb=512), LocalProvider)
"""A sandbox may write much more than was asked for."""
OpensTheNetwork = making(lambda spec: replace(spec, network="internet"), LocalProvider)
"""A sandbox is on the network although none was asked for."""


class SharesItsFiles(Weakened):
    """This machine's temporary files are in the sandbox."""

    def options(self, given: list[str]) -> list[str]:
        folder = tempfile.gettempdir()
        return _with_mount(given, "--ro-bind", folder, folder)


class SharesItsDisks(Weakened):
    """A disk of this machine is in the sandbox; mounts of it are refused all the same."""

    def options(self, given: list[str]) -> list[str]:
        disk, *_ = [str(path) for path in Path("/dev").iterdir() if path.is_block_device()]
        at = given.index("--dev") + 2
        return [*given[:at], "--dev-bind", disk, disk, *given[at:]]


class OpensTheKernelsSettings(Weakened):
    """A kernel setting can be written; here a file in its place."""

    def options(self, given: list[str]) -> list[str]:
        setting = private_folder() / "setting"
        setting.write_text("core\n")
        setting.chmod(0o666)
        return _with_mount(given, "--bind", str(setting), "/proc/sys/kernel/core_pattern")


class AllowsNamespaces(Weakened):
    """Commands may make namespaces, and mounts in them."""

    def options(self, given: list[str]) -> list[str]:
        return _without_seccomp([option for option in given if option != "--disable-userns"])


class _RunsOn(LocalBox):
    async def exec(self, command: Command, output: Output) -> Exit:
        return await asyncio.shield(asyncio.ensure_future(super().exec(command, output)))


class LetsCommandsRunOn(LocalProvider):
    """Cancelling a command does not kill it."""

    box_type = _RunsOn


class TrustsItsCommands(Weakened):
    """An agent without its own guards: signals reach it, and it can be traced."""

    def options(self, given: list[str]) -> list[str]:
        kept = _without_seccomp(given)
        while "--cap-add" in kept:
            at = kept.index("--cap-add")
            del kept[at : at + 2]
        return kept

    @asynccontextmanager
    async def weakness(self) -> AsyncGenerator[None]:
        """With an agent built from sources that lack the guards."""
        unguarded = await asyncio.to_thread(_unguarded_agent)
        async with super().weakness():
            with mock.patch.object(binary, "path", return_value=unguarded):
                yield


class LeavesNoHeadroom(LetsCommandsRunOn):
    """The limit of processes counts the agent's own, and a cancelled command is not killed."""

    async def create(self, spec: SandboxSpec, first: FirstCommand | None = None) -> LocalBox:
        with mock.patch.object(_provider, "_AGENT_PIDS", 0):
            return await super().create(spec, first)


def private_folder() -> Path:
    """Return a new folder of this machine, which whoever uses these providers removes in the end."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    made.append(folder)
    return folder


def _with_mount(options: list[str], *mount: str) -> list[str]:
    at = options.index(_layout.AGENT) - 2  # before what is mounted over is made read-only
    return [*options[:at], *mount, *options[at:]]


def _without_seccomp(options: list[str]) -> list[str]:
    at = options.index("--seccomp")
    return options[:at] + options[at + 2 :]


@functools.cache
def _unguarded_agent() -> Path:
    folder = private_folder()
    source = folder / "agent"
    shutil.copytree(ROOT / "agent", source)
    for name, line in (
        ("main.go", "	shieldFromSignals()\n"),
        ("creds.go", "	syscall.RawSyscall(syscall.SYS_PRCTL, prSetDumpable, 0, 0)\n"),
    ):
        code = (source / name).read_text()
        assert line in code
        (source / name).write_text(code.replace(line, ""))
    subprocess.run([sys.executable, str(source / "build.py")], check=True, capture_output=True)
    built = folder / "providers" / "_agent" / "bin" / binary.path().name
    for path in [*built.parents][:3]:
        path.chmod(0o755)
    return built
