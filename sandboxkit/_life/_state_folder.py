"""The folder through which a user's processes share state about this machine's sandboxes."""

import os
import stat
from pathlib import Path

from sandboxkit.errors import ConfigurationError


def state_folder() -> Path:
    """Return SANDBOXKIT_STATE_DIR or a folder below /run or /tmp; if missing, create it (mode 0700).

    The result is the same for every process of the user, however it was started; TMPDIR and
    XDG_RUNTIME_DIR differ between processes and are ignored. Raises ConfigurationError if the
    folder cannot be created or other users can access it.
    """
    uid = os.geteuid()
    chosen = os.environ.get("SANDBOXKIT_STATE_DIR")
    runtime = Path("/run") if uid == 0 else Path(f"/run/user/{uid}")
    if chosen:
        path = Path(chosen).absolute()
    elif os.access(runtime, os.W_OK):
        path = runtime / "sandboxkit"
    else:
        path = Path(f"/tmp/sandboxkit-{uid}")
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = path.lstat()
    except OSError as error:
        raise ConfigurationError(
            f"the state folder {path} cannot be made: {error}; set SANDBOXKIT_STATE_DIR"
        ) from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != uid or found.st_mode & 0o077:
        # Another user could connect to sandboxes' sockets there, or plant their own.
        raise ConfigurationError(
            f"the state folder {path} must be a folder of uid {uid} with mode 0700; "
            "remove it or set SANDBOXKIT_STATE_DIR"
        )
    return path
