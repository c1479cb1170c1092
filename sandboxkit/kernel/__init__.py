"""Kernels: a Python that lasts, in a sandbox; see `Sandbox.python`."""

from sandboxkit.kernel._kernel import Kernel
from sandboxkit.kernel._options import KernelOptions
from sandboxkit.kernel._result import CellError, CellOutput, CellResult, Outcome

__all__ = ["CellError", "CellOutput", "CellResult", "Kernel", "KernelOptions", "Outcome"]
