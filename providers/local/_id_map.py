"""Mount namespaces in which folders have another owner, by id-mapped mounts (Linux 5.12)."""

import ctypes
import os
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

# System call numbers and flags, the same on every architecture.
_OPEN_TREE, _MOVE_MOUNT, _MOUNT_SETATTR = 428, 429, 442
_CLONE_FS, _CLONE_NEWNS = 0x200, 0x20000
_CLONE_VM, _CLONE_NEWUSER = 0x100, 0x10000000
_WALL = 0x40000000
_STACK, _SLEEP = 64 * 1024, 10
_AT_FDCWD, _AT_EMPTY_PATH = -100, 0x1000
_OPEN_TREE_CLONE = 1
_MOVE_MOUNT_F_EMPTY_PATH = 4
_MOUNT_ATTR_IDMAP = 0x100000
_MS_NOSUID, _MS_NODEV = 2, 4


class _MountAttributes(ctypes.Structure):
    _fields_ = (
        ("set", ctypes.c_uint64),
        ("clear", ctypes.c_uint64),
        ("propagation", ctypes.c_uint64),
        ("user_namespace", ctypes.c_uint64),
    )


def with_owner(
    namespace: int,
    folders: list[str],
    user_namespace: int,
    prepare: Callable[[], object] = lambda: None,
) -> int:
    """Copy a mount namespace and map the owners of these folders in it; return the copy's descriptor.

    `user_namespace` maps owners on disk to visible owners. `prepare` is called in the copy. Raises
    OSError, with the folder as its file name, if the kernel or a folder's file system does not support
    that.
    """
    # A thread of its own, because it cannot return from the other namespace.
    with ThreadPoolExecutor(1, "sandboxkit-id-map") as own:
        return own.submit(_mapped, namespace, folders, user_namespace, prepare).result()


def _mapped(
    namespace: int, folders: list[str], user_namespace: int, prepare: Callable[[], object]
) -> int:
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
    prepare()
    return os.open("/proc/thread-self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)


def mount_tmpfs(folder: str, size: int, owner: int) -> None:
    """Mount a tmpfs of `size` bytes that belongs to `owner` in this thread's namespace. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    options = f"size={size},mode=0755,uid={owner},gid={owner}".encode()
    flags = _MS_NOSUID | _MS_NODEV
    if libc.mount(b"sandboxkit", os.fsencode(folder), b"tmpfs", flags, options) < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), folder)


def user_namespace(shown: int, stored: int) -> int:
    """Return a descriptor of a new user namespace that maps the uid and gid `stored` to `shown`.

    A start waits for this, and a helper program would take ten times as long. Raises OSError.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    # The child shares our memory, runs nothing but libc's sleep(), and is killed at once. Were this
    # process killed first, it would end by itself.
    stack = ctypes.create_string_buffer(_STACK)
    top = (ctypes.addressof(stack) + _STACK) & ~15
    flags = _CLONE_VM | _CLONE_NEWUSER
    sleep = ctypes.cast(libc.sleep, ctypes.c_void_p)
    pid = libc.clone(sleep, ctypes.c_void_p(top), flags, ctypes.c_void_p(_SLEEP))
    if pid < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), "a user namespace")
    try:
        for name in ("uid_map", "gid_map"):
            with open(f"/proc/{pid}/{name}", "w") as file:
                file.write(f"{stored} {shown} 1")
        return os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, _WALL)
