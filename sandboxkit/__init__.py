"""sandboxkit: one Session and Sandbox API over many sandbox backends."""

import sandboxkit._calls._foreign_names
import sandboxkit._distribution
import sandboxkit.display.pages  # registers what notebooks show
from sandboxkit import errors
from sandboxkit._operation import Operation, as_completed, wait
from sandboxkit._process import Process
from sandboxkit._sandbox import Sandbox
from sandboxkit._session import Session
from sandboxkit._snapshot import Snapshot
from sandboxkit.datasets import Dataset, Volume
from sandboxkit.egress import Credential, Egress, EgressRecord
from sandboxkit.errors import *  # noqa: F403 - all of them, which are listed there once
from sandboxkit.images import Image
from sandboxkit.types import (
    CommandUsage,
    Ending,
    FileInfo,
    FileType,
    Interpreter,
    ProcessResult,
    PtySize,
    SandboxInfo,
    SandboxSpec,
    SandboxState,
    Usage,
)

__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    """Raise AttributeError, and ImportError for a name that is often looked for here."""
    if ours := sandboxkit._calls._foreign_names.replacement("sandboxkit", name):
        raise ImportError(f"sandboxkit has no {name!r}: {ours}")
    if name.endswith("Provider"):
        raise ImportError(f"sandboxkit has no {name!r}: name the backend, as in Session('docker')")
    raise AttributeError(f"module 'sandboxkit' has no attribute {name!r}")


__all__ = [
    "CommandUsage",
    "Credential",
    "Dataset",
    "Egress",
    "EgressRecord",
    "Ending",
    "FileInfo",
    "FileType",
    "Image",
    "Interpreter",
    "Operation",
    "Process",
    "ProcessResult",
    "PtySize",
    "Sandbox",
    "SandboxInfo",
    "SandboxSpec",
    "SandboxState",
    "Session",
    "Snapshot",
    "Usage",
    "Volume",
    "as_completed",
    "wait",
]
__all__ += errors.__all__
