"""A shell command that is a process of its own: no state is kept for the next one."""

_SHELL = 'if command -v bash >/dev/null 2>&1; then exec bash -c "$1" bash; fi; exec sh -c "$1" sh'


def shell_argv(script: str) -> list[str]:
    """Return the command that runs a script in bash, or in sh if there is no bash."""
    return ["sh", "-c", _SHELL, "sh", script]


def killed_after(seconds: float) -> str:
    """Return the note on a command that was killed at its timeout."""
    return f"[killed: it ran past its timeout of {seconds:g} s]"
