"""Datasets on the daemon's machine: one volume for each, filled once from this machine's store.

A bind mount would not work with a daemon on another machine. Docker cannot rename or relabel a volume, so
two names make a fill atomic: the content goes into a volume with a random name, and an empty volume with
the dataset's name then points to it by a label. The daemon creates a name once; if two clients fill at
once, the second one removes its own copy. A volume that no pointer names is incomplete.
"""

import re
import secrets
from collections.abc import Iterator
from typing import Any

from sandboxkit.provider import DatasetStore
from sandboxkit.providers.docker._loaders import loader, remove_abandoned
from sandboxkit.providers.docker._volume_api import labels_of, remove_if_free

LABEL = "sandboxkit.dataset"
_CONTENT = "sandboxkit.dataset.volume"
_PREFIX = "sandboxkit-dataset-"
_POINTER = re.compile(_PREFIX + "([0-9a-f]{64})")
_VOLUME = re.compile(_PREFIX + "([0-9a-f]{64})-[0-9a-f]{16}")


# Any: the docker package has no types.
def ensure(api: Any, image: str, digest: str) -> str:
    """Find or fill the volume of a dataset, through a container made from `image`; return its name.

    Raises DatasetNotFoundError if it is neither there nor in this machine's store.
    """
    pointer = f"{_PREFIX}{digest.removeprefix('sha256:')}"
    volume = labels_of(api, pointer).get(_CONTENT)
    if volume is not None:
        if LABEL in labels_of(api, volume):
            return volume
        for name in (volume, pointer):  # what it names was removed, and is empty if it exists
            remove_if_free(api, name)
    content = DatasetStore().archive(digest)
    volume, found = f"{pointer}-{secrets.token_hex(8)}", ""
    api.create_volume(volume, labels={LABEL: digest})
    try:
        found = _fill(api, image, digest, content, pointer, volume)
    finally:
        if found != volume:  # the fill failed, or another client was first
            remove_if_free(api, volume)
    return found


def _fill(
    api: Any, image: str, digest: str, content: Iterator[bytes], pointer: str, volume: str
) -> str:
    """Fill a volume, let the pointer name it unless another client was first; return what it names."""
    with loader(api, image, volume) as (container, target):
        api.put_archive(container, target, content)
        # While the loader refers to the volume, nobody removes it for having no pointer.
        api.create_volume(pointer, labels={LABEL: digest, _CONTENT: volume})
        return labels_of(api, pointer).get(_CONTENT, "")


def remove_unused(api: Any, *, dry_run: bool) -> list[str]:
    """Remove the volumes that no container refers to; return the digests of the complete ones."""
    if not dry_run:
        remove_abandoned(api)
    listed = api.volumes(filters={"name": _PREFIX}).get("Volumes") or ()
    known = {item["Name"]: item.get("Labels") or {} for item in listed}
    pointers = {
        labels[_CONTENT]: name
        for name, labels in known.items()
        if _POINTER.fullmatch(name) and _CONTENT in labels
    }
    removed = []
    for volume in sorted({*pointers, *filter(_VOLUME.fullmatch, known)}):
        if dry_run:
            free = not api.containers(all=True, filters={"volume": volume})
        else:
            free = remove_if_free(api, volume)
        if free and volume in pointers:
            if not dry_run:
                remove_if_free(api, pointers[volume])
            removed.append(known[pointers[volume]][LABEL])
    return removed
