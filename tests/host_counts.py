"""Programs that use up what the kernel counts for each uid, and programs that need some of it."""

_IN_BACKGROUND = """
import os, signal
ready, full = os.pipe()
if os.fork():
    os.close(full)
    print(os.read(ready, 100).decode(), flush=True)
    os._exit(0)
os.setsid()
{}
os.write(full, str(count).encode())
os.closerange(0, 3)
signal.pause()
"""

ATTACKS = {
    "descriptors in flight": """
import array, socket
count, kept = 0, []
try:
    while True:
        kept.append(socket.socketpair())
        rights = array.array("i", [kept[0][0].fileno()] * 250)
        for _ in range(8):
            kept[-1][0].sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
            count += 250
except OSError:
    pass
""",
    "timers": """
import ctypes
libc, count, timer = ctypes.CDLL(None), 0, ctypes.c_void_p()
while libc.timer_create(1, None, ctypes.byref(timer)) == 0:
    count += 1
""",
    "pipe pages": """
import fcntl
count, kept = 0, []
try:
    for _ in range(1000):
        kept.append(os.pipe())
        count += fcntl.fcntl(kept[-1][0], fcntl.F_SETPIPE_SZ, 1 << 20) >> 12
except OSError:
    pass
try:
    for _ in range(2000):  # and those of the usual size
        kept.append(os.pipe())
except OSError:
    pass
""",
    "inotify instances": """
import ctypes
libc, count = ctypes.CDLL(None), 0
while libc.inotify_init() >= 0:
    count += 1
""",
}
"""Each prints how much it got, and keeps that in the background."""
ATTACKS = {name: _IN_BACKGROUND.format(code) for name, code in ATTACKS.items()}

VICTIMS = {
    "descriptors in flight": """
import array, socket
a, b = socket.socketpair()
a.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0, 1, 2]))])
print("fine")
""",
    "timers": """
import ctypes
libc, timer = ctypes.CDLL(None), ctypes.c_void_p()
for _ in range(100):
    assert libc.timer_create(1, None, ctypes.byref(timer)) == 0
print("fine")
""",
    "pipe pages": """
import os
r, w = os.pipe()
os.set_blocking(w, False)
assert os.write(w, b"x" * 30_000) == 30_000
print("fine")
""",
    "inotify instances": """
import ctypes
assert ctypes.CDLL(None).inotify_init() >= 0
print("fine")
""",
}
"""Honest programs that need the same counts; each prints "fine"."""
