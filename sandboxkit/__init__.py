"""sandboxkit: one Session and Sandbox API over many sandbox backends."""

import sandboxkit._distribution
import sandboxkit.display.pages  # noqa: F401 - registers what notebooks show
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
