"""Finds the image and the working directory that a Harbor task's environment folder defines."""

import os
from pathlib import Path

from sandboxkit import ConfigurationError, Image
from sandboxkit.datasets import Folder
from sandboxkit.images import RegistryImage
from sandboxkit.integrations.swe.folder import dockerfile

OWN = "default"
"""Value of `image` that selects the provider's default image instead of the folder's."""


def image_and_workdir(
    files: Folder, where: str, docker_image: object, override: str | None
) -> tuple[Image | str | None, str | None]:
    """Return the image and the working directory of a task's `environment`; None means the provider's default.

    `override` is the user's image, `docker_image` the prebuilt image that task.toml names; without
    both it is that of the folder's Dockerfile, perhaps one to build. Raises ConfigurationError if there is no
    image, for an image that is no registry's, and for Docker Compose. `where` is the path of `environment` in
    the folder `files`.
    """
    folder = files.path / where
    for name in ("docker-compose.yaml", "docker-compose.yml"):
        if os.path.lexists(folder / name):
            raise ConfigurationError(
                f"{str(folder / name)!r}: sandboxes have no Docker Compose services"
            )
    image, workdir = dockerfile(files, where)
    if override is not None:
        return (None if override == OWN else override), workdir
    if docker_image is not None:
        return RegistryImage(docker_image, f"the task in {str(files.path)!r}"), workdir
    if image is None:
        raise ConfigurationError(
            f"{folder} names no image: give docker_image under [environment] in task.toml, a "
            f"Dockerfile, or image={OWN!r} for the provider's default"
        )
    return image, workdir


def loose_files(files: Folder, docker_image: object) -> Path | None:
    """Return `environment` if its files must be copied to a prebuilt image's working directory, else None."""
    if docker_image is None or (folder := files.subfolder("environment")) is None:
        return None
    names = os.listdir(folder)
    return folder if names and "Dockerfile" not in names else None
