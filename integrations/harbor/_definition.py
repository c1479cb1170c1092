"""Finds the image and the working directory that a Harbor task's environment folder defines."""

from pathlib import Path

from sandboxkit import ConfigurationError
from sandboxkit.integrations.swe.folder import dockerfile

OWN = "default"
"""Value of `image` that selects the provider's default image instead of the folder's."""


def image_and_workdir(
    folder: Path, docker_image: str | None, override: str | None
) -> tuple[str | None, str | None]:
    """Return the image and the working directory of a folder; None means the provider's default.

    `override` is the user's image, `docker_image` the prebuilt image that task.toml names; without
    both the folder's Dockerfile names the image. Nothing is built: raises ConfigurationError if a build
    would be needed or no image is named, and for Docker Compose.
    """
    composed = sorted(folder.glob("docker-compose.y*ml"))
    if composed:
        raise ConfigurationError(f"{composed[0]}: sandboxes have no Docker Compose services")
    path = folder / "Dockerfile"
    base, workdir, more = dockerfile(path.read_text("utf-8") if path.is_file() else "")
    if override is not None:
        return (None if override == OWN else override), workdir
    if docker_image is not None:
        return docker_image, workdir
    if more:
        raise ConfigurationError(
            f"{path} needs a build ({', '.join(sorted(more))}); build it and name the image as "
            "docker_image under [environment] in task.toml, or give image="
        )
    if base is None:
        raise ConfigurationError(
            f"{folder} names no image: give docker_image under [environment] in task.toml, a "
            f"Dockerfile, or image={OWN!r} for the provider's default"
        )
    return base, workdir


def loose_files(folder: Path, docker_image: str | None) -> Path | None:
    """Return the folder if its files must be copied to a prebuilt image's working directory, else None."""
    if docker_image is None or (folder / "Dockerfile").exists() or not folder.is_dir():
        return None
    return folder if any(folder.iterdir()) else None
