"""The name of our distribution, and a check for another project's package of the same name.

On the package index, the distribution `sandboxkit` belongs to another project. Both install a
package `sandboxkit` into the same folder and overwrite each other's files.
"""

import contextlib
import os
import sys

NAME = "sandboxkit-sdk"
_STRANGER = "sandboxkit-"
"""Prefix of the other project's metadata folder; ours starts with `sandboxkit_sdk-`."""


def install(extra: str) -> str:
    """Return the pip command that installs this distribution with an extra."""
    return f"pip install '{NAME}[{extra}]'"


def elsewhere() -> str | None:
    """Return an error message if the other distribution is in a folder of sys.path, else None."""
    return next(filter(None, map(_clash, sys.path)), None)


def _clash(folder: str) -> str | None:
    with contextlib.suppress(OSError):  # a zip file, or nothing at all
        for name in os.listdir(folder or "."):
            if name.startswith(_STRANGER) and name.endswith((".dist-info", ".egg-info")):
                return (
                    f"{name} in {folder!r} is somebody else's distribution with a package of the "
                    "same name, and each overwrites the other: run "
                    f"'pip uninstall sandboxkit {NAME}' and install {NAME} again"
                )
    return None


def _refuse_mixture() -> None:
    if found := _clash(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))):
        raise ImportError(found, name="sandboxkit")


_refuse_mixture()
