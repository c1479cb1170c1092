"""Finds the image and the working directory that a Harbor task's environment folder defines."""

import os
from pathlib import Path

from sandboxkit import ConfigurationError
from sandboxkit.datasets import Folder
from sandboxkit.images import RegistryImage
from sandboxkit.integrations.swe.folder import dockerfile

OWN = "default"
"""Value of `image` that selects the provider's default image instead of the folder's."""


def image_and_workdir(
    files: Folder, where: str, docker_image: object, override: str | None
) -> tuple[str | None, str | None]:
    """Return the image and the working directory of a task's `environment`; None means the provider's default.

    `override` is the user's image, `docker_image` the prebuilt image that task.toml names; without
    both the folder's Dockerfile names the image. Nothing is built: raises ConfigurationError if a build
    would be needed or no image is named, for an image that is no registry's, and for Docker Compose. `where`
    is the path of `environment` in the folder `files`.
    """
    folder = files.path / where
    for name in ("docker-compose.yaml", "docker-compose.yml"):
        if os.path.lexists(folder / name):
            raise ConfigurationError(
                f"{str(folder / name)!r}: sandboxes have no Docker Compose services"
            )
    path = folder / "Dockerfile"
    base, workdir, more = dockerfile(files.text(os.path.join(where, "Dockerfile")) or "")
    if override is not None:
        return (None if override == OWN else override), workdir
    if docker_image is not None:
        return RegistryImage(docker_image, f"the task in {str(files.path)!r}"), workdir
    if more:
        raise ConfigurationError(
            f"{path} needs a build ({sorted(more)}); build it and name the image as "
            "docker_image under [environment] in task.toml, or give image="
        )
    if base is None:
        raise ConfigurationError(
            f"{folder} names no image: give docker_image under [environment] in task.toml, a "
            f"Dockerfile, or image={OWN!r} for the provider's default"
        )
    return RegistryImage(base, f"the task in {str(files.path)!r}"), workdir


def loose_files(files: Folder, docker_image: object) -> Path | None:
    """Return `environment` if its files must be copied to a prebuilt image's working directory, else None."""
    if docker_image is None or (folder := files.subfolder("environment")) is None:
        return None
    names = os.listdir(folder)
    return folder if names and "Dockerfile" not in names else None
