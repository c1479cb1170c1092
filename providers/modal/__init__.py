"""Sandboxes at Modal, through its own SDK."""

from sandboxkit.providers.modal._provider import ModalProvider

__all__ = ["ModalProvider"]
