"""Image: a recipe for the files that sandboxes start with."""

import dataclasses
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Unpack

from sandboxkit import _ambient, _arguments
from sandboxkit._misuse import explained
from sandboxkit._operation import Operation
from sandboxkit._snapshot import Snapshot
from sandboxkit._spec import build as build_spec
from sandboxkit._spec import check
from sandboxkit.display.signatures import spelled_out
from sandboxkit.errors import ConfigurationError
from sandboxkit.images._names import image_on
from sandboxkit.options import SpecOptions
from sandboxkit.provider import Provider
from sandboxkit.types import SandboxSpec

if TYPE_CHECKING:
    from sandboxkit.images._steps import ImageStep

TTL = 7 * 86400.0
"""The default lifetime (s) of an image."""
_APT = (  # without a user of its own for downloads, whom a sandbox's root may not become
    'export DEBIAN_FRONTEND=noninteractive; apt="apt-get -o APT::Sandbox::User=root"; $apt update; '
    "$apt install --yes --no-install-recommends {}; rm -rf /var/lib/apt/lists/*"
)
_REFUSED = {
    "command": "its steps are its commands",
    "detach": "its sandbox ends with it",
    "files": "use copy()",
    "image": "a recipe's base is Image(base)",
    "reuse": "its sandbox serves no other job",
    "snapshot": "a recipe begins with Image(base)",
}
_PIP = "PIP_BREAK_SYSTEM_PACKAGES=1 python3 -m pip install --no-cache-dir {}"


@explained
@dataclass(frozen=True, slots=True)
class Image:
    """A recipe: a base and steps, which `build()` runs once and keeps as a snapshot.

    `base` is what the option `image` of the provider takes, None for its default. Each method returns a
    new recipe with one more step, so recipes can share their first steps:

        tools = Image("python:3.11").apt("git").pip("pytest==8.*")
        snapshot = tools.copy("src", "/app").run("make -C /app").build("docker").result()
        session = Session("docker", snapshot=snapshot)

    It works with every provider that has snapshots.
    """

    base: str | None = None
    steps: "tuple[ImageStep, ...]" = ()

    def run(self, command: str, *, timeout: float = 1800.0) -> "Image":
        """Add a step that runs a command with `sh -e`; it fails if the command does or after `timeout` s."""
        _arguments.positive("timeout", timeout, unit="seconds")
        # Imported where it is used: `import sandboxkit` should not pay for it.
        from sandboxkit.images._steps import RunStep

        return self._with(RunStep(_arguments.text("command", command), timeout))

    def apt(self, *packages: str) -> "Image":
        """Add a step that installs Debian packages. The sandbox's user must be root."""
        return self.run(_APT.format(_quoted("packages", packages)))

    def pip(self, *requirements: str) -> "Image":
        """Add a step that installs Python packages with the base's `python3`, such as "numpy==2.*"."""
        return self.run(_PIP.format(_quoted("requirements", requirements)))

    def copy(self, local: str | os.PathLike[str], remote: str) -> "Image":
        """Add a step that copies a file to the path `remote`, or a folder's contents into that folder.

        Modes and links in a folder are kept. The content is read by `build()`, which names, contents, links and
        whether a file is executable tell apart. A folder's links must stay in it.
        """
        from sandboxkit.images._steps import CopyStep

        return self._with(CopyStep(_arguments.local_path("local", local), _arguments.path(remote)))

    @staticmethod
    def from_dockerfile(path: str | os.PathLike[str], *, timeout: float = 1800.0) -> "Image":
        """Return the recipe of a Dockerfile with FROM, WORKDIR, COPY and RUN; its folder is the context.

        FROM names an image of a registry, or "default"; for a folder or an archive of this machine use
        `Image(base)`. Nothing outside of the context is read. Each RUN may take `timeout` s. Raises
        ConfigurationError, with the line, for other instructions.
        """
        _arguments.positive("timeout", timeout, unit="seconds")
        from sandboxkit.images import _dockerfile

        return Image(*_dockerfile.parse(_arguments.local_path("path", path), timeout))

    @spelled_out
    def build(
        self,
        provider: str | Provider | None = None,
        *,
        ttl: float = TTL,
        progress: Callable[[str], None] | None = None,
        **options: Unpack[SpecOptions],
    ) -> Operation[Snapshot]:
        """Return the image's snapshot; run its steps first unless this machine or backend has it already.

        Of all processes of this user on this machine one runs the steps, and the others wait for it. The
        build begins with the longest run of first steps that another recipe has left. An image is the same
        if the provider, base, steps, copied content, user, profile, workdir, env and mounts are the same; what
        a registry or package index serves may have changed since. `ttl` (s) is how long it is kept; one that
        has less than half of that left is built again. `progress` is called with each line of output, on the
        background loop, so it must not block; it defaults to the log `sandboxkit.images`.

        `options` are those of the sandbox in which the steps run; `network` defaults to "internet". All steps
        together must end within `lifetime`, by default an hour. Give secrets with `secrets=`: env is part of
        what tells images apart. Raises ImageBuildError if a step fails, or if another process builds
        the image for longer than `lifetime` and ten minutes, and ConfigurationError before anything is made if
        the provider has no snapshots.
        """
        from sandboxkit.images import _build

        _arguments.positive("ttl", ttl, unit="seconds")
        for name in sorted(_REFUSED.keys() & options.keys()):
            raise ConfigurationError(f"{name}= is not an option of build(): {_REFUSED[name]}")
        backend = provider if isinstance(provider, Provider) else _ambient.provider(provider)
        given = {"network": "internet", **options, "image": image_on(backend.name, self.base)}
        spec = build_spec(SandboxSpec(), given)
        check(backend, spec)
        backend.check_snapshot(spec, "files")
        if _build.TAG in spec.tags:
            _arguments.refuse("tags", dict(spec.tags), f"tags other than {_build.TAG!r}")
        return Operation(_build.build(backend, spec, self.steps, given, ttl, progress))

    def _with(self, step: "ImageStep") -> "Image":
        return dataclasses.replace(self, steps=(*self.steps, step))


def _quoted(name: str, values: tuple[str, ...]) -> str:
    if not values:
        raise ConfigurationError(f"{name} is empty; name at least one")
    for value in values:
        if _arguments.text(name, value).startswith("-") and name == "packages":
            _arguments.refuse(name, value, "the name of a package; run() takes any command")
    import shlex

    return " ".join(map(shlex.quote, values))
