"""The daytona provider: sandboxes made, found and removed; commands and files inside them."""

import json
import re
import secrets
from collections.abc import AsyncIterable, AsyncIterator, Mapping
from datetime import datetime
from functools import partial
from typing import ClassVar

import anyio
from daytona_api_client_async import Sandbox, SandboxListItem
from daytona_api_client_async import SandboxState as DaytonaState

from sandboxkit.errors import (
    ConfigurationError,
    ImageNotFoundError,
    SandboxError,
    SandboxNotFoundError,
    SandboxStartError,
    SandboxTerminatedError,
)
from sandboxkit.provider import Output, Provider
from sandboxkit.providers._hosted import main
from sandboxkit.providers._hosted.creation import create_once
from sandboxkit.providers._hosted.deadline import OutcomeUnknownError
from sandboxkit.providers._hosted.lifetime import Heartbeats
from sandboxkit.providers.daytona import _exec, _files, _spec
from sandboxkit.providers.daytona._account import NAME, Account, ConflictError
from sandboxkit.providers.daytona._ends import Ends
from sandboxkit.providers.daytona._machine import Machine
from sandboxkit.types import Command, Diagnosis, SandboxInfo, SandboxSpec, SandboxState

__all__ = ["DaytonaProvider"]

_ID = re.compile(r"[A-Za-z0-9-]{1,64}")
_PAGE = 100
_POLL_SECONDS = 0.1
_GONE = {DaytonaState.DESTROYED, DaytonaState.DESTROYING}
_FAILED = {DaytonaState.ERROR, DaytonaState.BUILD_FAILED}
_STOPPED = {
    *_FAILED,
    DaytonaState.STOPPED,
    DaytonaState.STOPPING,
    DaytonaState.ARCHIVED,
    DaytonaState.ARCHIVING,
    DaytonaState.PAUSED,
    DaytonaState.PAUSING,
}
_PREPARE = """
[ -d "$1" ] || mkdir -p -- "$1" 2>/dev/null \\
  || { sudo -n mkdir -p -- "$1" && sudo -n chown "$(id -u)" -- "$1"; }
"""


class DaytonaProvider(Provider):
    """Sandboxes of the account that DAYTONA_API_KEY names.

    An image is a registry's, or a snapshot of the account as "snapshot:NAME".
    """

    name: ClassVar[str] = NAME

    def __init__(
        self, *, api_key: str | None = None, timeout: float = 60.0, build_timeout: float = 600.0
    ) -> None:
        """`api_key` defaults to DAYTONA_API_KEY; `timeout` bounds each answer of Daytona, and
        `build_timeout` how long a sandbox may take to start, both in seconds."""
        self._account = Account(api_key, timeout)
        self._build_timeout = build_timeout
        self._machines: dict[str, Machine] = {}
        self._heartbeats = Heartbeats(self._set_ttl)
        self._ends = Ends(self.delete)

    def check(self, spec: SandboxSpec) -> None:
        self._account.check()
        _spec.check(spec)

    async def create(self, spec: SandboxSpec) -> str:
        self.check(spec)
        name = f"sandboxkit-{secrets.token_hex(16)}"
        sandbox_id = await create_once(
            lambda: self._create(spec, name), lambda: self._named(name), self.delete
        )
        try:
            await self._started(sandbox_id, spec)
            if spec.command is not None:
                await main.start(self, sandbox_id, spec.command)
        except BaseException as error:
            with anyio.CancelScope(shield=True):
                try:
                    await self.delete(sandbox_id)
                except SandboxError as failure:
                    error.add_note(f"and {sandbox_id} could not be removed: {failure}")
            raise
        if spec.lifetime is None:
            self._heartbeats.start(sandbox_id)
        else:
            self._ends.plan(sandbox_id, spec.lifetime)
        return sandbox_id

    async def _create(self, spec: SandboxSpec, name: str) -> str:
        what = f"create a sandbox from {spec.image or 'the default snapshot'}"
        body = _spec.request(spec, name, self._account.target)
        try:
            made = await self._account.call(
                self._account.sandboxes().create_sandbox(body), what=what
            )
        except ConfigurationError as error:
            text = str(error).lower()
            if "not found" in text and ("snapshot" in text or "image" in text):
                raise ImageNotFoundError(
                    f"no {spec.image!r} for this key: {error}", provider=NAME
                ) from error
            raise
        return made.id

    async def _named(self, name: str) -> list[str]:
        try:
            return [(await self._detail(name)).id]
        except SandboxNotFoundError:
            return []

    async def _started(self, sandbox_id: str, spec: SandboxSpec) -> None:
        """Wait until commands can run, and make the directory where they start."""
        found = await self._detail(sandbox_id)
        with anyio.move_on_after(self._build_timeout) as scope:
            while found.state is not DaytonaState.STARTED:
                if found.state in _STOPPED:
                    raise _start_error(found, spec)
                await anyio.sleep(_POLL_SECONDS)
                found = await self._detail(sandbox_id)
        if scope.cancelled_caught:
            raise SandboxStartError(
                f"daytona did not start a sandbox within {self._build_timeout:g} s; give the "
                "provider a longer build_timeout",
                provider=NAME,
                sandbox_id=sandbox_id,
            )
        machine = self._remember(found)
        workdir = spec.workdir or _spec.DEFAULT_WORKDIR
        argv = ("sh", "-c", _PREPARE, "sh", workdir)
        status, said = await machine.run_script(argv, f"make the directory {workdir!r}")
        if status:
            raise SandboxStartError(
                f"the directory {workdir!r} could not be made: {said.strip()[-200:]}",
                provider=NAME,
                sandbox_id=sandbox_id,
            )

    async def exec(self, sandbox_id: str, command: Command, output: Output) -> int:
        known = sandbox_id in self._machines
        machine = await self._machine(sandbox_id)
        try:
            return await _exec.run(machine, command, output)
        except SandboxNotFoundError as error:
            await self._forget(sandbox_id)
            if known:
                raise _terminated(sandbox_id) from error
            raise
        except _exec.ShellEnded as end:
            try:
                await self.get(sandbox_id)
            except SandboxNotFoundError as error:
                await self._forget(sandbox_id)
                raise _terminated(sandbox_id) from error
            return end.status
        except OutcomeUnknownError as error:
            # The connection broke: because the sandbox ended, or for another reason?
            try:
                await self.get(sandbox_id)
            except SandboxNotFoundError:
                await self._forget(sandbox_id)
                raise _terminated(sandbox_id) from error
            except SandboxError as failure:
                error.add_note(f"and whether the sandbox still runs is not known: {failure}")
            raise

    async def read_file(self, sandbox_id: str, path: str, *, max_bytes: int) -> bytes:
        return await _files.read(self, await self._machine(sandbox_id), path, max_bytes)

    async def write_file(
        self, sandbox_id: str, path: str, data: bytes, *, mode: int | None
    ) -> None:
        if len(data) <= _files.SMALL:
            await super().write_file(sandbox_id, path, data, mode=mode)
        else:
            await _files.write(self, await self._machine(sandbox_id), path, data, mode)

    async def put_archive(self, sandbox_id: str, path: str, tar: AsyncIterable[bytes]) -> None:
        await _files.unpack(self, await self._machine(sandbox_id), path, tar)

    async def list(self, tags: Mapping[str, str]) -> AsyncIterator[SandboxInfo]:
        wanted = {**tags, _spec.MARKER: "1"}
        cursor: str | None = None
        while True:
            page = await self._account.call(
                self._account.sandboxes().list_sandboxes(
                    labels=json.dumps(wanted), limit=_PAGE, cursor=cursor
                ),
                what="list sandboxes",
            )
            for found in page.items:
                if found.state not in _GONE and wanted.items() <= found.labels.items():
                    yield _info(found)
            cursor = page.next_cursor
            if not cursor:
                return

    async def get(self, sandbox_id: str) -> SandboxInfo:
        return _info(await self._detail(sandbox_id))

    async def delete(self, sandbox_id: str) -> None:
        await self._heartbeats.stop(sandbox_id)
        self._ends.forget(sandbox_id)
        try:
            await self._delete(sandbox_id)
        finally:
            await self._forget(sandbox_id)

    async def _delete(self, sandbox_id: str) -> None:
        if not _ID.fullmatch(sandbox_id):
            return
        with anyio.move_on_after(self._account.timeout):
            while True:
                try:
                    await self._account.call(
                        self._account.sandboxes().delete_sandbox(sandbox_id),
                        what="delete a sandbox",
                        sandbox_id=sandbox_id,
                    )
                except SandboxNotFoundError:
                    pass
                except ConflictError:  # it is changing its state, and can be deleted after that
                    await anyio.sleep(_POLL_SECONDS)
                    continue
                return
        raise OutcomeUnknownError(
            f"daytona did not delete a sandbox within {self._account.timeout:g} s; try again",
            provider=NAME,
            sandbox_id=sandbox_id,
        )

    async def renew(self, sandbox_id: str, lifetime: float) -> None:
        seconds = _spec.minutes(lifetime) * 60
        await self._heartbeats.stop(sandbox_id)
        await self._set_ttl(sandbox_id, seconds)
        self._ends.plan(sandbox_id, lifetime)

    async def logs(self, sandbox_id: str) -> bytes:
        return await main.logs(self, sandbox_id)

    async def wait(self, sandbox_id: str) -> int:
        return await main.wait(self, sandbox_id)

    async def diagnose(self) -> Diagnosis:
        isolation = "a container or virtual machine of its own on Daytona's servers"
        try:
            self._account.check()
            await self._account.call(
                self._account.sandboxes().list_sandboxes(limit=1), what="list sandboxes"
            )
        except SandboxError as error:
            return Diagnosis(
                available=False,
                isolation=isolation,
                detail="no access to Daytona",
                remedy=str(error),
            )
        where = self._account.url
        return Diagnosis(available=True, isolation=isolation, detail=f"the key works at {where}")

    async def aclose(self) -> None:
        await self._heartbeats.aclose()
        self._ends.close()
        async with anyio.create_task_group() as group:
            for sandbox_id in list(self._machines):
                group.start_soon(partial(self._forget, sandbox_id, gone=False))
        await self._account.aclose()

    async def _machine(self, sandbox_id: str) -> Machine:
        machine = self._machines.get(sandbox_id)
        return machine or self._remember(await self._detail(sandbox_id))

    def _remember(self, found: Sandbox) -> Machine:
        if found.id not in self._machines:
            self._machines[found.id] = Machine(
                self._account, found.id, proxy=found.toolbox_proxy_url, user=found.user
            )
        return self._machines[found.id]

    async def _forget(self, sandbox_id: str, *, gone: bool = True) -> None:
        machine = self._machines.pop(sandbox_id, None)
        if machine is not None:
            with anyio.CancelScope(shield=True):
                await machine.lines.aclose(gone=gone)

    async def _detail(self, sandbox_id: str) -> Sandbox:
        if not _ID.fullmatch(sandbox_id):
            raise _not_found(sandbox_id)
        found = await self._account.call(
            self._account.sandboxes().get_sandbox(sandbox_id),
            what="describe a sandbox",
            sandbox_id=sandbox_id,
        )
        if found.state in _GONE or found.labels.get(_spec.MARKER) != "1":
            raise _not_found(sandbox_id)
        return found

    async def _set_ttl(self, sandbox_id: str, seconds: int) -> None:
        if not _ID.fullmatch(sandbox_id):
            raise _not_found(sandbox_id)
        await self._account.call(
            self._account.sandboxes().set_ttl(sandbox_id, -(-seconds // 60)),
            what="renew a sandbox",
            sandbox_id=sandbox_id,
        )


def _not_found(sandbox_id: str) -> SandboxNotFoundError:
    return SandboxNotFoundError(
        f"no sandbox {sandbox_id!r}; it may have ended", provider=NAME, sandbox_id=sandbox_id
    )


def _terminated(sandbox_id: str) -> SandboxTerminatedError:
    return SandboxTerminatedError(
        f"sandbox {sandbox_id!r} has ended: its lifetime passed, or it was stopped",
        provider=NAME,
        sandbox_id=sandbox_id,
    )


def _start_error(found: Sandbox, spec: SandboxSpec) -> SandboxStartError:
    reason = found.error_reason or f"its state is {found.state}"
    kind = SandboxStartError
    if any(word in reason.lower() for word in ("manifest", "pull", "not found")):
        kind = ImageNotFoundError
    return kind(
        f"daytona could not start a sandbox from {spec.image or 'the default snapshot'}: "
        f"{reason[:500]}",
        provider=NAME,
        sandbox_id=found.id,
    )


def _time(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)


def _info(found: Sandbox | SandboxListItem) -> SandboxInfo:
    state = SandboxState.STARTING
    if found.state is DaytonaState.STARTED:
        state = SandboxState.RUNNING
    elif found.state in _STOPPED:
        state = SandboxState.STOPPED
    return SandboxInfo(
        id=found.id,
        provider=NAME,
        state=state,
        tags=dict(found.labels),
        image=found.snapshot,
        created_at=_time(found.created_at),
        expires_at=_time(found.auto_destroy_at),
    )
