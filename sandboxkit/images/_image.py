"""Image: a recipe for the files that sandboxes start with."""

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Unpack, get_args

from sandboxkit import _ambient
from sandboxkit._calls import _arguments
from sandboxkit._calls._arguments import explained
from sandboxkit._calls._foreign_names import ForeignNames, foreign_names
from sandboxkit._operation import Operation
from sandboxkit._snapshot import Snapshot
from sandboxkit._spec import build as build_spec
from sandboxkit._spec import check
from sandboxkit.display.signatures import spelled_out
from sandboxkit.errors import ConfigurationError
from sandboxkit.images._names import image_on
from sandboxkit.options import SpecOptions
from sandboxkit.provider import Provider
from sandboxkit.types import Dockerfile, Network, SandboxSpec

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
@foreign_names
@dataclass(frozen=True, slots=True)
class Image(metaclass=ForeignNames):
    """A recipe: a base and steps, which `build()` runs once and keeps as a snapshot.

    `base` is what the option `image` of the provider takes, None for its default, or a Dockerfile. Each method
    returns a new recipe with one more step, so recipes can share their first steps:

        tools = Image("python:3.11").apt("git").pip("pytest==8.*")
        snapshot = tools.copy("src", "/app").run("make -C /app").build("docker").result()
        session = Session("docker", snapshot=snapshot)

    It works with every provider that has snapshots; Dockerfiles work with local and docker.
    """

    base: str | Dockerfile | None = None
    steps: "tuple[ImageStep, ...]" = ()

    def run(self, command: str, *, timeout: float = 1800.0) -> "Image":
        """Add a step that runs a command with `sh -e`; it fails if the command does or after `timeout` s."""
        _arguments.positive("timeout", timeout, unit="seconds")
        return self._run(_arguments.text("command", command), timeout=timeout)

    def apt(self, *packages: str) -> "Image":
        """Add a step that installs Debian packages. The sandbox's user must be root."""
        names = _quoted("packages", packages)
        return self._run(_APT.format(names), f"apt-get install {names}")

    def pip(self, *requirements: str) -> "Image":
        """Add a step that installs Python packages with the base's `python3`, such as "numpy==2.*"."""
        names = _quoted("requirements", requirements)
        return self._run(_PIP.format(names), f"pip install {names}")

    def copy(self, local: str | os.PathLike[str], remote: str) -> "Image":
        """Add a step that copies a file to the path `remote`, or a folder's contents into that folder.

        Modes and links in a folder are kept. The content is read by `build()`, which names, contents, links and
        whether a file is executable tell apart. A folder's links must stay in it.
        """
        from sandboxkit.images._steps import CopyStep

        return self._with(CopyStep(_arguments.local_path("local", local), _arguments.path(remote)))

    @staticmethod
    def from_dockerfile(
        path: str | os.PathLike[str],
        *,
        target: str | None = None,
        args: Mapping[str, str] = MappingProxyType({}),
        secrets: Sequence[str] = (),
    ) -> "Image":
        """Return the image of a Dockerfile; its folder is the context, with docker's rules for .dockerignore.

        A builder that exists builds it: docker's own, or buildah. `target` is a stage, `args` are values for ARG, and
        `secrets` are those of `docker build --secret`, such as "id=token,src=FILE"; they are part of no image.
        FROM names images of registries. Nothing outside of the folder is read. Raises ConfigurationError, with
        the line, for what is no instruction.
        """
        folder, name = os.path.split(os.path.abspath(_arguments.local_path("path", path)))
        return Image.from_folder(folder, name, target=target, args=args, secrets=secrets)

    @staticmethod
    def from_folder(
        folder: str | os.PathLike[str],
        dockerfile: str = "Dockerfile",
        *,
        target: str | None = None,
        args: Mapping[str, str] = MappingProxyType({}),
        secrets: Sequence[str] = (),
    ) -> "Image":
        """Return the image of a folder with a Dockerfile, which may lie deeper; see `from_dockerfile`."""
        from sandboxkit.images import _dockerfile

        context = os.path.abspath(_arguments.local_path("folder", folder))
        if isinstance(secrets, str):
            _arguments.refuse("secrets", secrets, "a list such as ['id=token,src=FILE']")
        values = _arguments.mapping("args", args, "{'VERSION': '1'}")
        return Image(_dockerfile.read(context, dockerfile, target, values, tuple(secrets)))

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
        together must end within `lifetime`, by default an hour, and so must the build of a Dockerfile, whose
        network is "none" or "internet". Give secrets with `secrets=`: env is part of
        what tells images apart. Raises ImageBuildError if a step fails, or if another process builds
        the image for longer than `lifetime` and ten minutes, and ConfigurationError before anything is made if
        the provider has no snapshots.
        """
        from sandboxkit.images import _build

        _arguments.positive("ttl", ttl, unit="seconds")
        for name in sorted(_REFUSED.keys() & options.keys()):
            raise ConfigurationError(f"{name}= is not an option of build(): {_REFUSED[name]}")
        backend = provider if isinstance(provider, Provider) else _ambient.provider(provider)
        base = self.base.path if isinstance(self.base, Dockerfile) else self.base
        given = {"network": "internet", **options, "image": image_on(backend.name, base)}
        spec = build_spec(SandboxSpec(), given)
        if isinstance(self.base, Dockerfile) and given["network"] not in get_args(Network):
            raise ConfigurationError(
                "network=Egress(...): no builder of Dockerfiles keeps to a list; give 'none' or 'internet'"
            )
        check(backend, spec)
        backend.check_snapshot(spec, "files")
        if _build.TAG in spec.tags:
            _arguments.refuse("tags", dict(spec.tags), f"tags other than {_build.TAG!r}")
        return Operation(_build.build(backend, spec, self.base, self.steps, given, ttl, progress))

    def _run(self, command: str, shown: str = "", timeout: float = 1800.0) -> "Image":
        # Imported where it is used: `import sandboxkit` should not pay for it.
        from sandboxkit.images._steps import RunStep

        return self._with(RunStep(command, timeout, shown=shown))

    def _with(self, step: "ImageStep") -> "Image":
        return dataclasses.replace(self, steps=(*self.steps, step))


def _quoted(name: str, values: tuple[str, ...]) -> str:
    if not values:
        raise ConfigurationError(f"{name} is empty; name at least one")
    for value in values:
        if not isinstance(value, str):
            _arguments.refuse(name, value, "one string for each, as in pip('numpy', 'pandas')")
        if _arguments.text(name, value).startswith("-") and name == "packages":
            _arguments.refuse(name, value, "the name of a package; run() takes any command")
    import shlex

    return " ".join(map(shlex.quote, values))
