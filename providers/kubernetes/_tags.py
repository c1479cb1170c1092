"""How Kubernetes stores tags: as hashed labels to select by, and as one annotation with the values.

A label value has at most 63 characters from a small set, but a tag may have any value. Because
hashes may collide, pods that a selector finds are compared with the annotation.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

PREFIX = "sandboxkit.dev/"
MARKER = f"{PREFIX}sandbox"
ANNOTATION = f"{PREFIX}tags"
MAX_BYTES = 128 << 10
"""Half of the 256 KiB that Kubernetes allows for all annotations of an object."""


def labels(tags: Mapping[str, str]) -> dict[str, str]:
    """Return one label per tag, and the label that marks sandboxes."""
    return {
        MARKER: "1",
        **{f"{PREFIX}t-{_hash(key, 16)}": _hash(value, 40) for key, value in tags.items()},
    }


def selector(tags: Mapping[str, str]) -> str:
    """Return a label selector for pods with these tags; hash collisions may add other pods."""
    return ",".join(f"{name}={value}" for name, value in labels(tags).items())


def annotation(tags: Mapping[str, str]) -> str:
    """Return all tags as JSON."""
    return json.dumps(dict(tags), sort_keys=True)


# Any: somebody with permission to patch pods may have written anything.
def tags_of(metadata: Mapping[str, Any]) -> dict[str, str]:
    """Return the tags in a pod's metadata; invalid entries are left out."""
    try:
        stored: Any = json.loads((metadata.get("annotations") or {}).get(ANNOTATION, "{}"))
    except (TypeError, ValueError):
        return {}
    if not isinstance(stored, dict):
        return {}
    return {key: value for key, value in stored.items() if isinstance(value, str)}


def _hash(text: str, digits: int) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:digits]
