"""Attacks that still change a verdict, with the reason; a test fails for one that no longer does."""

__all__ = ["KNOWN"]

KNOWN: dict[str, dict[str, str]] = {
    "terminals": dict.fromkeys(
        ("local", "docker strict", "docker standard"),
        "kernel.pty.max is the machine's; only the mount option max= of devpts divides it",
    ),
    "locks on shared files": {
        "local": "the host's /usr and Python are bound, so a lock there is everybody's"
    },
    "locks on shared devices": {
        "local": "device files are the host's, because a user namespace makes none"
    },
}
"""By attack, then by place. Only neighbours that use the same thing themselves may be hit."""
