"""Terminals: persistent bash sessions on a PTY in a sandbox; see `Sandbox.terminal`."""

from sandboxkit.terminal._plain import plain
from sandboxkit.terminal._result import Expected, TerminalResult
from sandboxkit.terminal._terminal import Terminal

__all__ = ["Expected", "Terminal", "TerminalResult", "plain"]
