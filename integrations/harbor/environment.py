"""Harbor's environment interface, implemented by a sandbox of any backend."""

import posixpath
from collections.abc import Collection
from pathlib import Path
from typing import Any

from typing_extensions import override

from sandboxkit import (
    CommandStartError,
    CommandTimeoutError,
    ConfigurationError,
    Egress,
    Image,
    Sandbox,
    SandboxStartError,
    Session,
)
from sandboxkit.images import image_on
from sandboxkit.integrations._extras import needs
from sandboxkit.integrations._tools import stderr_of
from sandboxkit.integrations.swe.folder import (
    COMPOSE,
    allowed,
    changeable,
    image_and_workdir,
    network_of,
    public_network,
    task_folder,
    variables,
)
from sandboxkit.types import Network, Profile

with needs("harbor"):
    from harbor.environments.base import BaseEnvironment, ExecResult
    from harbor.environments.capabilities import (
        EnvironmentCapabilities,
        EnvironmentResourceCapabilities,
    )
    from harbor.models.task.config import NetworkMode, NetworkPolicy
    from harbor.models.trial.config import ResourceMode

_ROOT = ("root", "0")
_NOT_STARTED, _TIMED_OUT = 127, 124
_OUTPUT_LIMIT = 16 * 1024 * 1024
_LIFETIME = 24 * 3600.0
_LOGS = "/logs/"


class SandboxkitEnvironment(BaseEnvironment):
    """A trial's sandbox, for `harbor run -e` or a config's `environment.import_path`.

    Besides Harbor's own settings it accepts these options of a Session, as `kwargs` or `--ek`:
    `provider`, `image` (overrides the task's; "default" is the provider's default), `workdir`, `user`,
    `profile`, `pids`, and `lifetime` and `start_timeout` in seconds. `allow_network` has the servers that the
    task may name, or "internet" for all, `env_names` the variables of this process that its `env` may read.
    The folder's Dockerfile is built as `load_task` says.

    The network follows Harbor's phases; an "allowlist" becomes an `Egress`. If any phase is restricted,
    a "public" phase is an `Egress` too: it reaches every public name on ports 80 and 443, by HTTP and
    TLS.

    A command that times out has the status 124 and its output so far; one that cannot be started has
    127. Other errors are raised as sandboxkit's; Harbor records them as the trial's exception,
    without a reward. If the sandbox has only one user, Harbor's root commands run as that user, and
    commands of other users are refused. `storage_mb` is not enforced.
    """

    def __init__(
        self,
        *args: Any,  # Harbor's own
        provider: str | None = None,
        image: str | None = None,
        workdir: str | None = None,
        user: str | int | None = None,
        profile: Profile = "standard",
        pids: int | None = None,
        lifetime: float = _LIFETIME,
        start_timeout: float | None = None,
        allow_network: str | Collection[str] = (),
        env_names: Collection[str] = (),
        **kwargs: Any,
    ) -> None:
        self._provider, self._given_image, self._workdir = provider, image, workdir
        self._image: Image | str | None = None
        self._user, self._profile = None if user is None else str(user), profile
        self._pids, self._lifetime, self._start_timeout = pids, lifetime, start_timeout
        self._allow_network, self._env_names = allow_network, env_names
        self._one_user = False
        self._starts_in = "/"
        """Directory in which the sandbox's commands start; known after the start."""
        self._session: Session | None = None
        self._sandbox: Sandbox | None = None
        super().__init__(*args, **kwargs)

    @staticmethod
    @override
    def type() -> str:
        return "sandboxkit"

    @property
    @override
    def capabilities(self) -> EnvironmentCapabilities:
        return EnvironmentCapabilities(
            disable_internet=True,
            network_allowlist=True,
            network_allowlist_hostnames=True,
            network_allowlist_wildcard_hostnames=True,
            dynamic_network_policy=True,
        )

    @classmethod
    @override
    def resource_capabilities(cls) -> EnvironmentResourceCapabilities:
        return EnvironmentResourceCapabilities(cpu_limit=True, memory_limit=True)

    @override
    def _validate_definition(self) -> None:
        """Raise ConfigurationError for images of no registry, mounts of host folders and bad hosts."""
        settings, files = self.task_env_config, task_folder(self.environment_dir.parent)
        for name in (self.environment_dir.name, "tests", "solution"):
            files.subfolder(name)
        task = self.environment_dir.parent.name
        variables(task, settings.env or {}, self._env_names)
        for policy in self._policies():
            network = network_of(policy.network_mode.value, policy.allowed_hosts)
            allowed(task, network, self._allow_network)
        for name in COMPOSE:
            if files.find(f"{self.environment_dir.name}/{name}") is not None:
                raise ConfigurationError(
                    f"task {task!r}: {name}: sandboxes have no Docker Compose services"
                )
        self._image, found = image_and_workdir(
            files, self.environment_dir.name, settings.docker_image, self._given_image
        )
        self._workdir = self._workdir or settings.workdir or found
        for target in self._mount_targets():
            if not posixpath.normpath(target).startswith(_LOGS):
                raise ConfigurationError(f"cannot mount {target!r}: upload what the task needs")

    @override
    async def start(self, force_build: bool) -> None:
        """Start the sandbox. If that fails or is cancelled, the sandbox is deleted."""
        await self.stop(True)
        self._session = Session(
            self._provider,
            tags={"harbor": self.session_id[:60]},
            workdir=self._workdir,
            user=self._user,
            profile=self._profile,
            pids=self._pids,
            lifetime=self._lifetime,
            start_timeout=self._start_timeout,
            cpus=self._resource_limit_value("cpu", auto_mode=ResourceMode.LIMIT),
            memory_mb=self._resource_limit_value("memory", auto_mode=ResourceMode.LIMIT),
            network=self._network_of(self._network_policy),
            env=self._startup_env(),
        )
        try:
            image = self._image
            if isinstance(image, Image):
                network = public_network(self._allow_network)
                made_of = await image.build(self._provider, profile=self._profile, network=network)
                self._sandbox = await self._session.sandbox(snapshot=made_of).start()
            else:
                name = image_on(self._session.provider_name, image)
                self._sandbox = await self._session.sandbox(image=name).start()
            self._starts_in = await self._sandbox.workdir()
            made = await self.ensure_dirs(self._mount_targets(writable_only=True))
            if made is not None and made.return_code:
                raise SandboxStartError(f"the log folders cannot be created: {made.stderr}")
            await self._upload_environment_dir_after_start()
        except BaseException:
            self._session.close()  # not awaited: this task may be cancelled; the close continues
            raise

    @override
    async def stop(self, delete: bool) -> None:
        """Delete the sandbox, even if `delete` is False: it does not outlive its trial.

        If that fails or is cancelled, the next call retries.
        """
        self._sandbox = None
        if self._session is not None:
            await self._session.close()
            self._session = None

    @override
    async def _apply_network_policy(self, network_policy: NetworkPolicy) -> None:
        await self._running().set_network(self._network_of(network_policy))

    def _policies(self) -> list[NetworkPolicy]:
        return [self._network_policy, *self._phase_network_policies]

    def _network_of(self, policy: NetworkPolicy) -> Network | Egress:
        network = network_of(policy.network_mode.value, policy.allowed_hosts)
        always_public = all(each.network_mode is NetworkMode.PUBLIC for each in self._policies())
        return network if always_public else changeable(network)

    @override
    async def exec(
        self,
        command: str,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_sec: int | None = None,
        user: str | int | None = None,
    ) -> ExecResult:
        """Run a command in bash; see `BaseEnvironment.exec`."""
        chosen = self._resolve_user(user)
        name = None if chosen is None else str(chosen)
        variables, seconds = self._merge_env(env), timeout_sec or None
        if name in _ROOT and self._one_user:
            name = None
        try:
            return await self._run(command, cwd, variables, seconds, name)
        except ConfigurationError:
            if name not in _ROOT:
                raise
        result = await self._run(command, cwd, variables, seconds, None)
        self._one_user = True
        return result

    @override
    async def upload_file(self, source_path: Path | str, target_path: str) -> None:
        if target_path.endswith("/"):
            target_path += Path(source_path).name
        await self._running().upload(source_path, self._path(target_path))

    @override
    async def upload_dir(self, source_dir: Path | str, target_dir: str) -> None:
        await self._running().upload(source_dir, self._path(target_dir))

    @override
    async def download_file(self, source_path: str, target_path: Path | str) -> None:
        Path(target_path).parent.mkdir(parents=True, exist_ok=True)
        await self._running().download(self._path(source_path), target_path)

    @override
    async def download_dir(self, source_dir: str, target_dir: Path | str) -> None:
        """Copy the folder's contents, without links and special files."""
        Path(target_dir).mkdir(parents=True, exist_ok=True)
        await self._running().download(self._path(source_dir), target_dir)

    async def _run(
        self,
        command: str,
        cwd: str | None,
        env: dict[str, str] | None,
        seconds: int | None,
        user: str | None,
    ) -> ExecResult:
        try:
            result = await self._running().exec(
                ["bash", "-c", command],
                cwd=None if cwd is None else self._path(cwd),
                env=env,
                user=user,
                timeout=seconds,
                output_limit=_OUTPUT_LIMIT,
            )
        except CommandTimeoutError as error:
            stderr = f"{error.result.stderr}\nCommand timed out after {seconds} seconds"
            return ExecResult(stdout=error.result.stdout, stderr=stderr, return_code=_TIMED_OUT)
        except CommandStartError as error:
            if error.retryable:
                raise
            return ExecResult(stdout="", stderr=str(error), return_code=_NOT_STARTED)
        return ExecResult(
            stdout=result.stdout,
            stderr=stderr_of(result, _OUTPUT_LIMIT),
            return_code=result.returncode,
        )

    def _running(self) -> Sandbox:
        if self._sandbox is None:
            raise ConfigurationError("the environment was not started, or has been stopped")
        return self._sandbox

    def _path(self, path: str) -> str:
        return posixpath.normpath(posixpath.join(self._starts_in, str(path)))
