"""Submissions that fork, trace, stop and kill what runs beside them, or play for time."""

CHEATS = {
    "kills its parent": """
import os, signal
def mix(a, b):
    os.kill(os.getppid(), signal.SIGKILL)
    return 0
""",
    "kills itself": "import os\ndef mix(a, b): os.kill(os.getpid(), 9)",
    "stops itself": "import os\ndef mix(a, b): os.kill(os.getpid(), 19); return 0",
    "stops everything": """
import os, signal
def mix(a, b):
    for pid in (os.getppid(), -1):
        try: os.kill(pid, signal.SIGSTOP)
        except OSError: pass
    os.kill(0, signal.SIGSTOP)
    return 0
""",
    "terminates its group politely": """
import os, signal
signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
def mix(a, b):
    os.killpg(0, signal.SIGTERM)
    return 0
""",
    "aborts": "import os\ndef mix(a, b): os.abort()",
    "crashes": "import ctypes\ndef mix(a, b): return ctypes.string_at(0)",
    "a child that answers, too": """
import os
def mix(a, b):
    if os.fork() == 0: return 5
    os.wait()
    return 19
""",
    "many children that answer": """
import os
def mix(a, b):
    for guess in range(-25, 60):
        if os.fork() == 0: return guess
    return 0
""",
    "a child that answers after the end": """
import os, time
def mix(a, b):
    if os.fork() == 0:
        os.setsid()
        time.sleep(0.1)
        return 5
    os._exit(0)
""",
    "a child that holds the output": """
import os, time
if os.fork() == 0:
    time.sleep(1000)
def mix(a, b): return 0
""",
    "traces its parent": """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
def mix(a, b):
    for pid in (os.getppid(), 1):
        for request in (16, 0x4206):
            if libc.ptrace(request, pid, 0, 0) == 0: libc.ptrace(8, pid, 0, 0)
    return 0
""",
    "is traced and says nothing": """
import ctypes, os
ctypes.CDLL(None).ptrace(0, 0, 0, 0)
def mix(a, b): os.kill(os.getpid(), 5); return 0
""",
    "runs out of descriptors": """
import os
try:
    while True: os.dup(0)
except OSError: pass
def mix(a, b): return 0
""",
    "runs out of processes": """
import os, time
def mix(a, b):
    try:
        while True:
            if os.fork() == 0: time.sleep(1000)
    except OSError: pass
    return 0
""",
    "runs out of disk": """
import os
def mix(a, b):
    for folder in ("/workspace", "/tmp", "/dev/shm"):
        try:
            with open(folder + "/full", "wb") as out:
                for _ in range(3000): out.write(bytes(100_000))
        except OSError: pass
    return 0
""",
    "an alarm that leaves": """
import os, signal, time
signal.signal(signal.SIGALRM, lambda *_: os._exit(0))
signal.setitimer(signal.ITIMER_REAL, 0.05)
def mix(a, b): time.sleep(0.2); return 0
""",
    "slow at import": "import time\ntime.sleep(1000)\ndef mix(a, b): return 0",
    "slower each time": """
import time
def mix(a, b): time.sleep(0.1 * abs(a)); return 0
""",
    "locks the interpreter": "import re\ndef mix(a, b): return re.match('(a+)+b', 'a' * 60)",
    "a thread that changes what it returns": """
import threading
value = [0]
def change():
    while True:
        for guess in (5, 19, 49, -5, -21): value[0] = guess
threading.Thread(target=change, daemon=True).start()
def mix(a, b): return value
""",
    "starts again as a module": """
import os, runpy, sys
def mix(a, b):
    os.execv(sys.executable, [sys.executable, "-c", "import os; os.write(1, b'passed')"])
""",
    "changes its limits": """
import resource
for name in dir(resource):
    if name.startswith("RLIMIT_"):
        try: resource.setrlimit(getattr(resource, name), (0, 0))
        except (OSError, ValueError): pass
def mix(a, b): return 0
""",
    "changes its user": """
import os
for change in (lambda: os.setuid(0), lambda: os.setgid(0), lambda: os.chroot("/")):
    try: change()
    except OSError: pass
def mix(a, b): return 0
""",
    "changes the frame of its caller": """
import ctypes, sys
def mix(a, b):
    frame = sys._getframe(1)
    for name in list(frame.f_locals):
        frame.f_locals[name] = True
        ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), ctypes.c_int(0))
    return 0
""",
    "changes the code of the test": """
import gc, types
def nothing(*_): pass
for each in gc.get_objects():
    if isinstance(each, types.FunctionType) and each.__name__.startswith(("check", "test")):
        each.__code__ = nothing.__code__
def mix(a, b):
    for each in gc.get_objects():
        if isinstance(each, types.FunctionType) and each.__name__.startswith(("check", "test")):
            each.__code__ = nothing.__code__
    return 0
""",
    "gives int another equality": """
import ctypes
class Slots(ctypes.Structure):
    _fields_ = [("head", ctypes.c_ssize_t * 3), ("slots", ctypes.c_void_p * 40)]
try:
    mine = type("Yes", (int,), {"__eq__": lambda *_: True, "__hash__": int.__hash__})
    ours, theirs = Slots.from_address(id(int)), Slots.from_address(id(mine))
    for index in range(8, 30):
        if theirs.slots[index] and index == 22: ours.slots[index] = theirs.slots[index]
except Exception: pass
def mix(a, b): return 0
""",
}
