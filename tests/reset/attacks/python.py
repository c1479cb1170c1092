"""Attacks on the next job's Python, by what it finds when it starts, and by what it is forked from."""

import atexit
import builtins
import faulthandler
import gc
import importlib.util
import json
import os
import random
import resource
import signal
import site
import struct
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from tests.reset.attacks.means import MARK, attack, refused

_SAYS = f"print({MARK!r})\n"


def _put(path: str, text: str = _SAYS) -> None:
    with suppress(OSError):
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        with open(path, "w") as file:
            file.write(text)


@attack("local docker")
def modules_beside_the_program() -> None:
    for name in (
        "json",
        "ctypes",
        "resource",
        "socket",
        "sitecustomize",
        "usercustomize",
        "encodings",
    ):
        _put(f"{name}.py")


def import_helper() -> dict[str, object]:
    """What a helper module says that this job writes itself."""
    _put("helper.py", "SAYS = 'honest'\n")
    os.utime("helper.py", (1e9, 1e9))
    sys.path.insert(0, os.getcwd())
    import helper  # type: ignore[import-not-found]  # written above

    return {"helper": helper.SAYS}


@attack("local docker", feel=import_helper)
def bytecode_beside_the_program() -> None:
    """It names the time and size that the next job's own module will have."""
    _put("helper.py", f"SAYS = {'cheated'!r}\n")
    code = compile("SAYS = 'cheated'\n", "helper.py", "exec")
    import marshal

    cache = importlib.util.cache_from_source("helper.py")
    os.makedirs("__pycache__")
    head = importlib.util.MAGIC_NUMBER + struct.pack("<III", 0, int(1e9), 16)
    with open(cache, "wb") as file:
        file.write(head + marshal.dumps(code))
    os.unlink("helper.py")


@attack("local docker")
def the_users_own_packages() -> None:
    folder = site.getusersitepackages()
    _put(f"{folder}/usercustomize.py")
    _put(f"{folder}/mark.pth", f"import sys; {_SAYS}")


@attack("")
def system_packages() -> None:
    for folder in (*site.getsitepackages(), os.path.dirname(os.__file__)):
        with refused():
            open(f"{folder}/sitecustomize.py", "w").close()


@attack("")
def environment_and_folder() -> None:
    os.environ.update(PYTHONPATH="/tmp", PYTHONSTARTUP="/tmp/x", LD_PRELOAD="/tmp/x", MARK=MARK)
    os.mkdir("gone")
    os.chdir("gone")
    os.rmdir("../gone")
    os.umask(0o777)


@attack("")
def limits_of_its_own() -> None:
    for name in ("NOFILE", "FSIZE", "CPU", "STACK", "MSGQUEUE", "SIGPENDING", "MEMLOCK"):
        resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (64, 64))
    os.setpriority(os.PRIO_PROCESS, 0, 19)
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


@attack("")
def patched_builtins() -> None:
    def lie(*_: Any, **__: Any) -> str:  # Any: it stands in for anything
        return MARK

    for name in ("len", "open", "print", "sorted", "__import__", "isinstance", "repr"):
        setattr(builtins, name, lie)
    # Not until everything else has been done: nothing works any more.
    json.dumps = lie
    random.random = lie  # type: ignore[assignment]  # on purpose
    time.time = lie  # type: ignore[assignment]  # on purpose


@attack("")
def poisoned_modules() -> None:
    for name in list(sys.modules):
        if name not in ("sys", "builtins", "__main__"):
            sys.modules[name] = type(sys)(MARK)
    sys.path[:] = ["/tmp"]
    sys.meta_path.clear()
    sys.path_hooks.clear()


@attack("")
def collector_and_limits() -> None:
    gc.disable()
    gc.freeze()
    gc.set_threshold(1)
    sys.setrecursionlimit(60)
    sys.setswitchinterval(10)
    with suppress(AttributeError):
        sys.set_int_max_str_digits(640)


@attack("", dies=True)
def handlers_and_alarms() -> None:
    signal.signal(signal.SIGTERM, lambda *_: None)
    signal.signal(signal.SIGALRM, signal.SIG_IGN)
    signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
    signal.setitimer(signal.ITIMER_PROF, 0.01)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    faulthandler.enable()
    faulthandler.dump_traceback_later(0.05, exit=True)
    time.sleep(0.2)


@attack("local docker")
def things_for_the_end() -> None:
    def never() -> None:
        _put(f"/tmp/{MARK}")

    atexit.register(never)
    os.register_at_fork(after_in_child=never, before=never)
    threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()


@attack("")
def traces_and_hooks() -> None:
    def trace(*_: object) -> Callable[..., Any]:  # Any: sys.settrace's own
        return trace

    sys.settrace(trace)
    sys.setprofile(trace)
    sys.addaudithook(lambda *_: None)
    sys.excepthook = lambda *_: None
    sys.displayhook = lambda *_: None
    sys.unraisablehook = lambda _: None
    random.seed(1)


@attack("", dies=True)
def closed_descriptors() -> None:
    os.closerange(3, 4096)
    for descriptor in range(3, 64):
        with suppress(OSError):
            os.dup2(0, descriptor)
    os.closerange(0, 4096)


@attack("", dies=True)
def death_by_a_signal() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


@attack("", dies=True)
def memory_until_death() -> None:
    kept = []
    while True:
        kept.append(bytearray(8 << 20))
