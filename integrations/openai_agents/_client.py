"""The Agents SDK's sandbox client, which creates, resumes and deletes sandbox sessions."""

import uuid
from weakref import WeakValueDictionary

from agents.sandbox.manifest import Manifest
from agents.sandbox.session import SandboxSession, SandboxSessionState
from agents.sandbox.session.dependencies import Dependencies
from agents.sandbox.session.manager import Instrumentation
from agents.sandbox.session.sandbox_client import BaseSandboxClient
from agents.sandbox.snapshot import SnapshotBase, SnapshotSpec, resolve_snapshot
from typing_extensions import override

from sandboxkit import (
    Sandbox,
    SandboxError,
    SandboxNotFoundError,
    SandboxState,
    SandboxTerminatedError,
    Session,
)
from sandboxkit.integrations.openai_agents import _errors
from sandboxkit.integrations.openai_agents._session import SandboxkitSession, check_manifest
from sandboxkit.integrations.openai_agents._state import (
    SandboxkitClientOptions,
    SandboxkitSessionState,
)

_WORKDIR = "/workspace"
_MAX_ARCHIVE = 1 << 30


class SandboxkitClient(BaseSandboxClient[SandboxkitClientOptions | None]):
    """Provides the sandboxes of a sandboxkit Session to the Agents SDK.

        async with Session("docker", image="python:3.11") as session:
            sandbox = SandboxRunConfig(client=SandboxkitClient(session))
            await Runner.run(agent, "...", run_config=RunConfig(sandbox=sandbox))

    The SDK deletes each sandbox at the end of its run. If the workspace cannot be persisted then, the
    sandbox has its only copy and is kept until `delete()` or until the Session is closed.
    `max_archive_bytes` limits the size of a persisted workspace.
    """

    backend_id = "sandboxkit"
    supports_default_options = True

    def __init__(
        self,
        session: Session,
        *,
        instrumentation: Instrumentation | None = None,
        dependencies: Dependencies | None = None,
        max_archive_bytes: int = _MAX_ARCHIVE,
    ) -> None:
        self._session = session
        self._instrumentation = instrumentation or Instrumentation()
        self._dependencies = dependencies
        self._max_archive = max_archive_bytes
        self._made: WeakValueDictionary[str, Sandbox] = WeakValueDictionary()

    @override
    async def create(
        self,
        *,
        snapshot: SnapshotSpec | SnapshotBase | None = None,
        manifest: Manifest | None = None,
        options: SandboxkitClientOptions | None = None,
    ) -> SandboxSession:
        """Start a sandbox and return its session. Raises the SDK's WorkspaceStartError or ConfigurationError.

        Commands start in the manifest's root or, without a manifest, in the workdir of the options or
        of the Session.
        """
        options = options or SandboxkitClientOptions()
        if manifest is not None:
            self._validate_manifest_for_create(manifest)
        sandbox, starts_in = await self._start(options, None if manifest is None else manifest.root)
        session_id = uuid.uuid4()
        state = SandboxkitSessionState(
            session_id=session_id,
            manifest=manifest or Manifest(root=starts_in),
            snapshot=resolve_snapshot(snapshot, str(session_id)),
            provider=self._session.provider_name,
            sandbox_id=sandbox.id or "",
            options=options,
        )
        return self._wrapped(state, sandbox, preserved=False)

    @override
    async def resume(self, state: SandboxSessionState) -> SandboxSession:
        """Reconnect to the state's sandbox or, if it has ended, start a new one with the same options.

        In a new sandbox the returned session restores the snapshot when it starts. Raises TypeError for
        a state of another client, and the SDK's WorkspaceStartError.
        """
        if not isinstance(state, SandboxkitSessionState):
            raise TypeError(f"{type(state).__name__} is not a SandboxkitSessionState")
        state.assert_path_grants_rebound()
        check_manifest(state.manifest)
        sandbox = await self._living(state)
        if sandbox is not None:
            return self._wrapped(state, sandbox, preserved=True)
        sandbox, _ = await self._start(state.options, state.manifest.root)
        state.provider, state.sandbox_id = self._session.provider_name, sandbox.id or ""
        state.workspace_root_ready = False
        return self._wrapped(state, sandbox, preserved=False)

    @override
    async def delete(self, session: SandboxSession) -> SandboxSession:
        """Delete the session's sandbox. Safe to call repeatedly."""
        inner = session._inner
        if not isinstance(inner, SandboxkitSession):
            raise TypeError(f"{type(inner).__name__} is not a session of sandboxkit")
        await inner.shutdown()
        return session

    @override
    def deserialize_session_state(self, payload: dict[str, object]) -> SandboxSessionState:
        return self._deserialize_session_state_payload(payload, SandboxkitSessionState)

    @override
    def _validate_manifest_for_create(self, manifest: Manifest) -> Manifest:
        check_manifest(manifest)
        return super()._validate_manifest_for_create(manifest)

    async def _start(
        self, options: SandboxkitClientOptions, root: str | None
    ) -> tuple[Sandbox, str]:
        """Start a sandbox; return it and the directory in which its commands start."""
        try:
            overrides = options.options()
            sandbox = self._session.sandbox(**overrides)
            if root not in (None, sandbox.spec.workdir):
                overrides["workdir"] = root
                sandbox = self._session.sandbox(**overrides)
            await sandbox.start()
            starts_in = await sandbox.workdir()
        except SandboxError as error:
            raise _errors.started(root or _WORKDIR, error) from error
        self._made[sandbox.id or ""] = sandbox
        return sandbox, starts_in

    async def _living(self, state: SandboxkitSessionState) -> Sandbox | None:
        if state.provider != self._session.provider_name:
            return None
        try:
            sandbox = self._made.get(state.sandbox_id)
            if sandbox is None:
                sandbox = await self._session.adopt(state.sandbox_id)
            if (await sandbox.status()).state is SandboxState.RUNNING:
                return sandbox
            await sandbox.stop()
        except (SandboxNotFoundError, SandboxTerminatedError):
            pass
        except SandboxError as error:
            raise _errors.started(state.manifest.root, error) from error
        return None

    def _wrapped(
        self, state: SandboxkitSessionState, sandbox: Sandbox, *, preserved: bool
    ) -> SandboxSession:
        inner = SandboxkitSession(state, sandbox, self._max_archive)
        inner._set_start_state_preserved(preserved)
        return self._wrap_session(inner, instrumentation=self._instrumentation)
