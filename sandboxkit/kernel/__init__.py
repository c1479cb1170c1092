"""Kernels: persistent Python sessions in a sandbox; see `Sandbox.python`."""

from sandboxkit.kernel._kernel import Kernel
from sandboxkit.kernel._options import KernelOptions
from sandboxkit.kernel._result import CellError, CellOutcome, CellOutput, CellResult

__all__ = ["CellError", "CellOutcome", "CellOutput", "CellResult", "Kernel", "KernelOptions"]
