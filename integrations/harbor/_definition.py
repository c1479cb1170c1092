"""What a Harbor folder says about its sandbox: the image and the directory in which commands start."""

from pathlib import Path

from sandboxkit import ConfigurationError
from sandboxkit.integrations.swe.folder import dockerfile

OWN = "default"
"""As an image: the provider's own, whatever the folder says."""


def image_and_workdir(
    folder: Path, docker_image: str | None, override: str | None
) -> tuple[str | None, str | None]:
    """Of a folder with a Dockerfile, or with nothing where `docker_image` names what was built.

    None for what the provider decides. Nothing is built: raises ConfigurationError for a folder
    that needs it and has no image named, and for one of Docker Compose.
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
    """The folder, where its files belong into the working directory of a prebuilt image."""
    if docker_image is None or (folder / "Dockerfile").exists() or not folder.is_dir():
        return None
    return folder if any(folder.iterdir()) else None
