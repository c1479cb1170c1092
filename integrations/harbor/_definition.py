"""Image and working directory of the sandbox that a Harbor folder defines."""

from pathlib import Path

from sandboxkit import ConfigurationError
from sandboxkit.integrations.swe.folder import dockerfile

OWN = "default"
"""Value of `image` that selects the provider's default image, whatever the folder says."""


def image_and_workdir(
    folder: Path, docker_image: str | None, override: str | None
) -> tuple[str | None, str | None]:
    """Return image and working directory of a folder; None for what the provider decides.

    The folder has a Dockerfile, or `docker_image` names a prebuilt image. Nothing is built: raises
    ConfigurationError for a folder that needs a build and names no image, and for Docker Compose.
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
            f"Dockerfile, or image={OWN!r} for the provider's own"
        )
    return base, workdir


def loose_files(folder: Path, docker_image: str | None) -> Path | None:
    """Return the folder if its files belong in the working directory of a prebuilt image, else None."""
    if docker_image is None or (folder / "Dockerfile").exists() or not folder.is_dir():
        return None
    return folder if any(folder.iterdir()) else None
