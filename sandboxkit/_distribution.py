"""The distribution that holds this package, and the stranger's that has a package of this name.

On the package index the distribution called `sandboxkit` is another project's. Both install a
package `sandboxkit` into the same folder, where each overwrites files of the other.
"""

import contextlib
import os
import sys

NAME = "sandboxkit-sdk"
_STRANGER = "sandboxkit-"
"""How the folder of its metadata begins; those of ours begin with `sandboxkit_sdk-`."""


def install(extra: str) -> str:
    """The command that installs this distribution with one of its extras."""
    return f"pip install '{NAME}[{extra}]'"


def elsewhere() -> str | None:
    """One sentence where the stranger's distribution is in any folder that Python looks into."""
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
