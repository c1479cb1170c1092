"""Programs that have to end alike in a fork of the interpreter and in a Python of their own."""

from dataclasses import dataclass, field

__all__ = ["PROGRAMS", "Program"]


@dataclass(frozen=True)
class Program:
    """One program, and what it is given."""

    code: str
    args: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    stdin: bytes | None = None
    terminal: bool = False


_THREAD = """
import threading, time
printed = threading.Event()
def late():
    printed.wait()
    time.sleep(0.05)
    print("late")
threading.Thread(target=late).start()
threading.Thread(target=time.sleep, args=(100,), daemon=True).start()
print(threading.current_thread(), threading.main_thread() is threading.current_thread())
printed.set()
"""

_POOL = """
import multiprocessing
def double(n):
    return 2 * n
with multiprocessing.get_context("fork").Pool(2) as pool:
    print(pool.map(double, range(5)))
"""

_SPAWN = """
import multiprocessing, os
if __name__ == "__main__":
    child = multiprocessing.get_context("spawn").Process(target=print, args=("spawned",))
    child.start()
    child.join()
    print(child.exitcode)
"""

_SIGNALS = """
import signal, time
for each in sorted(signal.valid_signals()):
    handler = signal.getsignal(each)
    if handler is not signal.SIG_DFL:
        print(each, handler)
print(signal.pthread_sigmask(signal.SIG_BLOCK, []))
rang = []
signal.signal(signal.SIGALRM, lambda *_: rang.append(print("alarm")))
signal.setitimer(signal.ITIMER_REAL, 0.01)
while not rang:
    time.sleep(0.001)
"""

_LIMITS = """
import os, resource
for name in sorted(dir(resource)):
    if name.startswith("RLIMIT_"):
        print(name, resource.getrlimit(getattr(resource, name)))
print(os.nice(0), oct(os.umask(0)), os.getcwd(), os.getuid(), os.getgid(), os.getgroups())
print(os.sched_getaffinity(0), os.sched_getscheduler(0))
print(sorted(os.listdir("/proc/self/fd"))[:3], os.getsid(0) == os.getpid() == os.getpgrp())
"""

_RIGHTS = """
for line in open("/proc/self/status"):
    if line.split(":")[0] in ("Uid", "Gid", "Groups", "SigBlk", "SigIgn", "SigCgt", "CapInh",
                              "CapPrm", "CapEff", "CapAmb", "NoNewPrivs", "Seccomp", "Threads"):
        print(line)
print(open("/proc/self/oom_score_adj").read())
import os
print(os.stat("/proc/self/mem").st_uid == os.getuid(), os.readlink("/proc/self/cwd"))
"""

_STREAMS = """
import sys
for each in (sys.stdin, sys.stdout, sys.stderr):
    print(each, each.mode, each.errors, each.line_buffering, each.write_through, each.newlines,
          each.isatty(), each.fileno(), each.buffer, type(each.buffer.raw), each.buffer.raw.name)
print(sys.stdin is sys.__stdin__, sys.stdout is sys.__stdout__, sys.stderr is sys.__stderr__)
"""

_MAIN = """
import sys
print(sorted(globals()), __name__, __doc__, __spec__, __package__, __builtins__, __loader__)
print(sys.modules["__main__"].__dict__ is globals(), sys.argv, sys.path, sys.flags, sys.executable)
print(sys.excepthook is sys.__excepthook__, sys.displayhook is sys.__displayhook__, sys.warnoptions)
print(sys.gettrace(), sys.getprofile(), sys.dont_write_bytecode, sys.prefix, sys.getrecursionlimit())
print(sys.stdout.encoding, sys.getfilesystemencoding(), sys.getdefaultencoding(), sys.meta_path)
print(hasattr(sys, "last_value"), hasattr(sys, "ps1"), sys.exc_info())
import gc
print(gc.isenabled(), gc.get_threshold(), gc.callbacks, gc.garbage)
"""

_CHAINED = """
def inner():
    {}["missing"]
def outer():
    try:
        inner()
    except KeyError as error:
        raise ValueError("above\\nit") from error
outer()
"""

_GROUP = """
import sys
if sys.version_info >= (3, 11):
    raise ExceptionGroup("two", [ValueError(1), TypeError(2)])
raise ValueError("none")
"""

_FINAL = """
import atexit, weakref
class Named:
    def __init__(self, name): self.name = name
    def __del__(self): print("del", self.name)
kept = Named("kept")
cycle = Named("cycle")
cycle.me = cycle
weakref.finalize(kept, print, "finalized")
atexit.register(print, "first")
atexit.register(print, "second")
def numbers():
    try:
        yield 1
    finally:
        print("closed")
open_generator = numbers()
next(open_generator)
print("end")
"""

_FORKS = """
import os, sys
pid = os.fork()
if pid == 0:
    print("child")
    sys.exit(5)
print(os.WEXITSTATUS(os.waitpid(pid, 0)[1]))
"""

_ASYNC = """
import asyncio
async def main():
    process = await asyncio.create_subprocess_exec("echo", "hi", stdout=-1)
    print(await process.communicate(), process.returncode)
    await asyncio.sleep(0)
    raise RuntimeError("from a task")
asyncio.run(main())
"""

_TYPED = """
from __future__ import annotations
import dataclasses, typing, pickle, inspect
count: int = 3
@dataclasses.dataclass
class Point:
    x: int
    y: "list[int]"
print(Point(1, [2]), __annotations__, typing.get_type_hints(Point))
print(pickle.loads(pickle.dumps(Point(3, []))), Point.__module__)
try:
    print(inspect.getsource(Point))
except (OSError, TypeError) as error:
    print(type(error), error)
"""

_MEMORY = """
import resource
resource.setrlimit(resource.RLIMIT_AS, (200 << 20, 200 << 20))
bytearray(400 << 20)
"""

_RANDOM = """
import random, secrets, uuid, tempfile, os
random.seed(7)
print(random.random(), len(secrets.token_hex(4)), uuid.UUID(int=3))
with tempfile.TemporaryDirectory() as folder:
    print(os.path.isdir(folder))
"""

_WARNINGS = """
import warnings, sys
warnings.warn("shown once")
warnings.warn("of the future", DeprecationWarning)
print(warnings.filters)
print(1 is 1)
eval("'\\\\d'")
"""

_UNRAISABLE = """
class Broken:
    def __del__(self):
        raise ValueError("in a finalizer")
def use():
    Broken()
use()
import threading
thread = threading.Thread(target=lambda: 1 / 0, name="worker")
thread.start()
thread.join()
"""

_LOGGED = """
import logging, doctest, unittest, traceback, sys
logging.basicConfig(format="%(levelname)s %(name)s %(funcName)s %(message)s")
logging.getLogger("x").warning("careful")
class Case(unittest.TestCase):
    def test_it(self): self.assertEqual(1, 2)
result = unittest.TextTestRunner(stream=open("/dev/null", "w")).run(unittest.defaultTestLoader.loadTestsFromTestCase(Case))
print(result.failures[0][1])
try:
    (lambda: 1 / 0)()
except ZeroDivisionError:
    traceback.print_exc()
    print(traceback.format_exc(limit=-1))
"""

_ENDS = {
    "a finalizer": "class A:\n    def __del__(self): print('gone')\na = A()",
    "a finalizer without a collector": (
        "class A:\n    __slots__ = ()\n    def __del__(self): print('gone')\na = A()"
    ),
    "a finalizer in a module that was there": (
        "import json\nclass A:\n    def __del__(self): print('gone')\njson.a = A()"
    ),
    "an inherited finalizer": (
        "class A:\n    def __del__(self): print('gone', type(self))\nclass B(A): pass\nb = B()"
    ),
    "a finalizer of a metaclass": (
        "class M(type):\n    def __del__(self): print('gone')\nA = M('A', (), {})"
    ),
    "a finalizer that was frozen": (
        "import gc\nclass A:\n    def __del__(self): print('gone')\na = A()\ngc.freeze()"
    ),
    "a file that is not closed": (
        "import os\nf = open('kept', 'w')\nf.write('x' * 10)\n"
        "if os.fork() == 0:\n    os._exit(0)\nprint(os.path.getsize('kept'))\n"
        "g = os.fdopen(os.dup(1), 'w')\ng.write('written at the end')"
    ),
    "a generator": ("def f():\n    try: yield\n    finally: print('closed')\ng = f()\nnext(g)"),
    "a coroutine": "async def f(): pass\nf()\nc = f()",
    "a context": (
        "import contextlib\nstack = contextlib.ExitStack()\nstack.callback(print, 'left')\n"
        "@contextlib.contextmanager\ndef f():\n    try: yield\n    finally: print('closed')\n"
        "c = f()\nc.__enter__()"
    ),
    "a weak reference": "import weakref\nclass A: pass\na = A()\nr = weakref.ref(a, print)",
    "a weak reference to a set": "import weakref\ns = {1}\nr = weakref.ref(s, lambda _: print('gone'))",
    "a weak dictionary": (
        "import weakref\nclass A: pass\na = A()\nd = weakref.WeakValueDictionary(a=a)\nprint(len(d))"
    ),
    "a temporary folder": "import tempfile\nd = tempfile.TemporaryDirectory()\nprint(1)",
    "a temporary file": "import tempfile\nf = tempfile.NamedTemporaryFile()\nprint(1)",
    "a process": "import subprocess\np = subprocess.Popen(['sleep', '0.01'])\nprint(1)",
    "a callback": "import atexit\natexit.register(print, 'called')\nprint(1)",
    "a callback that begins a thread": (
        "import atexit, threading, time\ndef late():\n    time.sleep(100)\n    print('late')\n"
        "atexit.register(lambda: threading.Thread(target=late).start())"
    ),
    "a callback that leaves": "import atexit, sys\natexit.register(sys.exit, 3)\nprint(1)",
    "a thread": (
        "import threading, time\ndef late():\n    time.sleep(0.01)\n    print('late')\n"
        "threading.Thread(target=late).start()"
    ),
    "a pool of threads": (
        "import concurrent.futures, time\npool = concurrent.futures.ThreadPoolExecutor(2)\n"
        "pool.submit(lambda: (time.sleep(0.01), print('late')))"
    ),
    "a logger": (
        "import logging, logging.handlers, sys\n"
        "h = logging.handlers.MemoryHandler(99, target=logging.StreamHandler(sys.stdout))\n"
        "logging.getLogger().addHandler(h)\nlogging.warning('kept')"
    ),
    "a full disk": "import sys\nsys.stdout = open('/dev/full', 'w')\nprint(1)",
    "an output that is full": (
        "import os\nos.dup2(os.open('/dev/full', os.O_WRONLY), 1)\nprint(1)"
    ),
    "an error output that is full": (
        "import os, sys\nos.dup2(os.open('/dev/full', os.O_WRONLY), 2)\nprint(1)\n"
        "print('x', end='', file=sys.stderr)"
    ),
    "another output": "import io, sys\nsys.stdout = io.StringIO()\nprint(1)",
    "another output that prints": (
        "import sys\nclass Out:\n    def write(self, text): sys.__stdout__.write(text.upper())\n"
        "    def flush(self): sys.__stdout__.write('flushed')\nsys.stdout = Out()\nprint('a')"
    ),
    "no output": "import sys\nprint(1, end='')\nsys.stdout = None",
    "a detached output": "import sys\nprint(1, end='')\nb = sys.stdout.detach()\nb.write(b'2')",
    "an output of another encoding": "import sys\nsys.stdout.reconfigure(encoding='utf-16')\nprint('a')",
    "a flush of its own": "import sys\nsys.stdout.flush = lambda: 1 / 0\nprint(1)",
    "a library of C": (
        "import ctypes\nctypes.CDLL(None).printf(b'of C')\n"
        "end = ctypes.CFUNCTYPE(None)(lambda: print('the end of C'))\ngetattr(ctypes.CDLL(None), '__cxa_atexit')(end, None, None)"
    ),
    "changed builtins": (
        "import builtins\nfor name in ('type', 'id', 'any', 'map', 'set', 'issubclass', 'getattr'):\n"
        "    setattr(builtins, name, lambda *_: print('called'))"
    ),
    "a metaclass that speaks": (
        "import sys\nclass M(type):\n    def __getattr__(self, n): sys.stdout.write(n)\n"
        "    def __instancecheck__(self, o): sys.stdout.write('i')\n"
        "    def __subclasscheck__(self, o): sys.stdout.write('s')\nclass A(metaclass=M): pass\na = A()"
    ),
    "an object that speaks": (
        "import sys\nclass A:\n    def __getattribute__(self, n): sys.stdout.write(n)\n"
        "    def __eq__(self, o): sys.stdout.write('=')\n    def __hash__(self): sys.stdout.write('#')\na = A()"
    ),
    "a trace": "import sys\nsys.settrace(lambda *a: print(a[1], a[0].f_code.co_name))",
    "a module of its own": (
        "import sys, types\nm = types.ModuleType('m')\nm.__getattr__ = lambda n: print(n)\nsys.modules['m'] = m"
    ),
    "no modules": "import sys\nsys.modules.clear()",
    "other modules": "import sys\nsys.modules = None",
    "many objects": "kept = [[n] for n in range(300000)]\nprint(len(kept))",
    "a signal": (
        "import signal\nsignal.signal(signal.SIGALRM, lambda *_: print('alarm'))\n"
        "print(1)\nsignal.setitimer(signal.ITIMER_REAL, 0.001)\n"
        "import time; time.sleep(0.01)"
    ),
    "a subinterpreter": (
        "try:\n    import _xxsubinterpreters as i\n    i.create()\nexcept ImportError: pass\nprint(1)"
    ),
    "a child that runs on": (
        "import os, time\nif os.fork() == 0:\n    time.sleep(0.01)\n    print('child')\nelse:\n    os.wait()"
    ),
}
"""What a program leaves at its end, of which more or less is seen."""

PROGRAMS: dict[str, Program] = {
    **{f"leaves {what} at its end": Program(code) for what, code in _ENDS.items()},
    "prints": Program("print(1)"),
    "is empty": Program(""),
    "is a comment": Program("# nothing"),
    "has no newline at its end": Program("if True:\n  print(1)"),
    "has a docstring": Program('"""Said."""\nprint(__doc__)'),
    "divides by zero": Program("x = 1\n\n\nx / 0"),
    "does not parse": Program("print(1)\nx ===\n"),
    "is indented": Program("  print(1)\n  print(2)"),
    "does not parse inside": Program("exec('a b')"),
    "returns outside a function": Program("return 3"),
    "is not UTF-8": Program("print('\udcff')"),
    "prints what is not UTF-8": Program("print('\\udcff', '\\u00e9', '\\U0001f600')"),
    "uses what is not defined": Program("def f():\n    return g\nf()"),
    "chains exceptions": Program(_CHAINED),
    "raises a group": Program(_GROUP),
    "raises what cannot be shown": Program(
        "class E(Exception):\n def __str__(self): raise ValueError\nraise E"
    ),
    "raises none": Program("raise 3"),
    "leaves with a number": Program("raise SystemExit(3)"),
    "leaves with a big number": Program("raise SystemExit(256 + 7)"),
    "leaves with a negative number": Program("raise SystemExit(-1)"),
    "leaves with nothing": Program("raise SystemExit"),
    "leaves with a text": Program("import sys; sys.exit('bye')"),
    "leaves with an object": Program("import sys; sys.exit([1, None])"),
    "leaves with a flag": Program("import sys; sys.exit(True)"),
    "leaves at once": Program("import os; print('lost', end=''); os._exit(4)"),
    "is interrupted": Program("raise KeyboardInterrupt('now')"),
    "interrupts itself": Program("import os, signal, time; os.kill(os.getpid(), 2); time.sleep(9)"),
    "terminates itself": Program("import os; print(1, flush=True); os.kill(os.getpid(), 15)"),
    "kills itself": Program("import os; print(1, flush=True); os.kill(os.getpid(), 9)"),
    "aborts": Program("import os; os.abort()"),
    "recurses": Program(
        "def f(n): return f(n + 1)\ntry:\n    f(0)\nexcept RecursionError as e:\n    print(e)"
    ),
    "recurses deeply": Program(
        "import sys\nsys.setrecursionlimit(20000)\ndef f(n): return n and 1 + f(n - 1)\nprint(f(9000))"
    ),
    "has arguments": Program(
        "import sys; print(sys.argv, getattr(sys, 'orig_argv', [])[1:])", ("a", "", "é -x")
    ),
    "has an environment": Program(
        "import os; print(sorted(os.environ.items())[:9]); print(os.popen('echo $ONE $EMPTY').read(), os.environb[b'ODD'])",
        env={"ONE": "1=2", "EMPTY": "", "ODD": "\udcff", "PYTHONUNBUFFERED": "1"},
    ),
    "has no locale": Program(
        "import sys, os; print(sys.stdout.errors, os.environ.get('LC_CTYPE')); print('é')",
        env={"LANG": "", "LC_ALL": ""},
    ),
    "reads a line": Program("print(repr(input('? ')))", stdin=b"caf\xc3\xa9\r\nmore\n"),
    "reads all": Program("import sys; print(list(sys.stdin))", stdin=b"a\nb\r\nc\rd\xff"),
    "reads nothing": Program("import sys; print(repr(sys.stdin.read())); input()"),
    "reads bytes": Program("import sys; print(len(sys.stdin.buffer.read()))", stdin=b"x" * 300_000),
    "does not read": Program("print('done')", stdin=b"x" * 500_000),
    "closes its output": Program("import sys; sys.stdout.close(); sys.exit(3)"),
    "closes its descriptor": Program("import os; print(1); os.close(1)"),
    "closes all": Program("import os; os.closerange(0, 3)"),
    "prints much": Program("for n in range(30000): print(n, 'x' * 20)"),
    "mixes streams": Program(
        "import os, sys\nprint('a')\nos.write(1, b'b')\nsys.stderr.write('c\\nd')\nos.system('echo e')"
    ),
    "prints bytes": Program("import sys; sys.stdout.buffer.write(bytes(range(256)))"),
    "shows its streams": Program(_STREAMS),
    "shows its streams on a terminal": Program(_STREAMS, terminal=True),
    "asks on a terminal": Program("print(input())", stdin=b"me\n", terminal=True),
    "shows its terminal": Program(
        "import os; print(os.ttyname(0) == os.ttyname(2), os.tcgetpgrp(0) == os.getpid(), "
        "os.get_terminal_size(), open('/dev/tty'))",
        terminal=True,
    ),
    "shows __main__": Program(_MAIN),
    "shows its limits": Program(_LIMITS),
    "shows its rights": Program(_RIGHTS),
    "shows its modules": Program("import sys; print(sorted(sys.modules)); import ctypes, socket"),
    "uses ctypes": Program(
        "import ctypes, socket, resource; print(ctypes.c_int(3), ctypes.CDLL(None).abs(-4), "
        "resource.getrusage(0).ru_maxrss > 0, socket.socketpair()[0].family)"
    ),
    "has threads": Program(_THREAD),
    "forks": Program(_FORKS),
    "has a pool": Program(_POOL),
    "spawns": Program(_SPAWN),
    "runs a program": Program(
        "import subprocess, sys; print(subprocess.run([sys.executable, '-c', 'print(7)'], "
        "capture_output=True)); subprocess.run('echo shell; exit 3', shell=True, check=True)"
    ),
    "handles signals": Program(_SIGNALS),
    "ends in order": Program(_FINAL),
    "fails at its end": Program("import atexit; atexit.register(lambda: 1 / 0); print(1)"),
    "has a hook": Program(
        "import sys; sys.excepthook = lambda *a: print(a[0], a[2].tb_lineno); 1/0"
    ),
    "has a broken hook": Program("import sys; sys.excepthook = lambda: None; 1/0"),
    "uses asyncio": Program(_ASYNC),
    "has types": Program(_TYPED),
    "uses too much memory": Program(_MEMORY),
    "is random": Program(_RANDOM),
    "warns": Program(_WARNINGS),
    "fails where nobody catches it": Program(_UNRAISABLE),
    "tests and logs": Program(_LOGGED),
    "leaves a child behind": Program(
        "import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(100)\nprint('left')"
    ),
    "changes its __main__": Program("import sys; sys.modules.pop('__main__'); print(3); 1/0"),
    "changes the builtins": Program(
        "import builtins, sys; sys.stdout.write('x'); builtins.print = None; del builtins.__import__"
    ),
    "fails in a class": Program("class A:\n    def m(self):\n        assert not 1, 'no'\nA().m()"),
    "fails to import": Program("import no_such_module"),
    "compiles": Program(
        "import ast, dis; print(ast.dump(ast.parse('1+1'))); print(eval('__name__'))"
    ),
}
