"""Mount namespaces in which folders have another owner, by id-mapped mounts (Linux 5.12)."""

import ctypes
import os
import threading

__all__ = ["with_owner"]

# System call numbers and flags, the same on every architecture.
_OPEN_TREE, _MOVE_MOUNT, _MOUNT_SETATTR = 428, 429, 442
_CLONE_FS, _CLONE_NEWNS = 0x200, 0x20000
_AT_FDCWD, _AT_EMPTY_PATH = -100, 0x1000
_OPEN_TREE_CLONE = 1
_MOVE_MOUNT_F_EMPTY_PATH = 4
_MOUNT_ATTR_IDMAP = 0x100000


class _MountAttributes(ctypes.Structure):
    _fields_ = (
        ("set", ctypes.c_uint64),
        ("clear", ctypes.c_uint64),
        ("propagation", ctypes.c_uint64),
        ("user_namespace", ctypes.c_uint64),
    )


def with_owner(namespace: int, folders: list[str], user_namespace: int) -> int:
    """Copy a mount namespace and map the owners of these folders in it; return the copy's descriptor.

    `user_namespace` maps owners on disk to visible owners. Raises OSError, with the folder as its
    file name, if the kernel or a folder's file system does not support that.
    """
    made: list[int] = []
    failed: list[OSError] = []

    def work() -> None:
        try:
            made.append(_mapped(namespace, folders, user_namespace))
        except OSError as error:
            failed.append(error)

    # A thread of its own, because it cannot return from the other namespace.
    thread = threading.Thread(target=work, name="sandboxkit-id-map", daemon=True)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return made[0]


def _mapped(namespace: int, folders: list[str], user_namespace: int) -> int:
    libc = ctypes.CDLL(None, use_errno=True)

    def checked(result: int, folder: str | None = None) -> int:
        if result < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), folder)
        return result

    checked(libc.unshare(_CLONE_FS))
    checked(libc.setns(namespace, _CLONE_NEWNS))
    checked(libc.unshare(_CLONE_NEWNS))
    for folder in folders:
        path = os.fsencode(folder)
        flags = _OPEN_TREE_CLONE | os.O_CLOEXEC
        tree = checked(libc.syscall(_OPEN_TREE, _AT_FDCWD, path, flags), folder)
        try:
            wanted = _MountAttributes(set=_MOUNT_ATTR_IDMAP, user_namespace=user_namespace)
            size, pointer = ctypes.sizeof(wanted), ctypes.byref(wanted)
            checked(libc.syscall(_MOUNT_SETATTR, tree, b"", _AT_EMPTY_PATH, pointer, size), folder)
            moved = libc.syscall(_MOVE_MOUNT, tree, b"", _AT_FDCWD, path, _MOVE_MOUNT_F_EMPTY_PATH)
            checked(moved, folder)
        finally:
            os.close(tree)
    return os.open("/proc/thread-self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
