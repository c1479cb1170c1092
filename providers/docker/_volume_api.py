"""Calls of the Docker daemon's API about one volume, for datasets and writable volumes alike."""

from typing import Any

from docker.errors import (  # type: ignore[import-untyped]  # the package ships no types
    APIError,
    NotFound,
)

from sandboxkit.providers.docker._errors import is_status


# Any: the docker package has no types.
def labels_of(api: Any, volume: str) -> dict[str, str]:
    """Return a volume's labels; none for one that does not exist."""
    try:
        return dict(api.inspect_volume(volume).get("Labels") or {})
    except NotFound:
        return {}


def remove_if_free(api: Any, volume: str) -> bool:
    """Remove a volume, if it exists; return False if a container refers to it."""
    try:
        api.remove_volume(volume)
    except NotFound:
        return True
    except APIError as error:
        if is_status(error, 409):
            return False
        raise
    return True
