"""Tags as Kubernetes stores them: labels to select by, which are hashes, and an annotation with all.

A label's value has at most 63 characters of few kinds, a tag's has any. So what a selector finds is
compared with the annotation.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

__all__ = [
    "ANNOTATION",
    "MARKER",
    "MAX_BYTES",
    "PREFIX",
    "annotation",
    "labels",
    "selector",
    "tags_of",
]

PREFIX = "sandboxkit.dev/"
MARKER = f"{PREFIX}sandbox"
ANNOTATION = f"{PREFIX}tags"
MAX_BYTES = 128 << 10
"""Kubernetes has room for 256 KiB of annotations in all."""


def labels(tags: Mapping[str, str]) -> dict[str, str]:
    """One label for each tag, and the one that marks sandboxes."""
    return {
        MARKER: "1",
        **{f"{PREFIX}t-{_hash(key, 16)}": _hash(value, 40) for key, value in tags.items()},
    }


def selector(tags: Mapping[str, str]) -> str:
    """What selects the pods that carry these tags, and perhaps a few more."""
    return ",".join(f"{name}={value}" for name, value in labels(tags).items())


def annotation(tags: Mapping[str, str]) -> str:
    """All of them, readable."""
    return json.dumps(dict(tags), sort_keys=True)


# Any: whoever may patch pods may have written anything.
def tags_of(metadata: Mapping[str, Any]) -> dict[str, str]:
    """The tags of a pod by its metadata; what is no tag is left out."""
    try:
        stored: Any = json.loads((metadata.get("annotations") or {}).get(ANNOTATION, "{}"))
    except (TypeError, ValueError):
        return {}
    if not isinstance(stored, dict):
        return {}
    return {key: value for key, value in stored.items() if isinstance(value, str)}


def _hash(text: str, digits: int) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:digits]
