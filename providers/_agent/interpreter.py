"""The server that forks jobs: `PATH -I -c THIS NAME LIMITS...`, see agent/python.go.

The server removes its own imports from `sys.modules`. Only the fork reads the job, after it has switched
to the job's user. The job's code runs in the single frame at the end of this file, and the fork then
returns to Python's own finalization. So Python itself sets the exit status, waits for threads and
reports errors.
"""

import sys

# A job may change the builtins, so the code below uses a copy of them.
globals()["__builtins__"] = vars(__builtins__).copy()

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class End:
    """Exit a successful job at once if Python's own finalization would have no visible effect.

    Finalization destroys every object, including those of preloaded modules, and costs more than
    the rest of a small job. It has visible effects if objects have finalizers, if threads or exit
    callbacks remain, or if a library has its own shutdown. Python finalizes such jobs, and every
    failed job.
    """

    LOUD = frozenset(("_ctypes", "_curses", "_dbm", "_gdbm", "_interpreters", "_sqlite3")) | {
        *("_testcapi", "_tkinter", "_xxsubinterpreters", "gc", "readline")
    }
    """Modules that act at exit, or let a job act at exit, in a way that cannot be detected."""

    def __init__(self) -> None:
        import _thread
        import _weakref
        import atexit
        import gc
        import posix

        self.objects, self.exit = gc.get_objects, posix._exit
        self.callbacks, self.call_back = atexit._ncallbacks, atexit._run_exitfuncs
        self.threads = _thread._count
        self.reference = _weakref.ReferenceType
        self.callback: Any = vars(_weakref.ReferenceType)["__callback__"]

    def prepare(self) -> None:
        """Record the modules and classes that exist before any job, for comparison at its end."""
        self.before = self.callbacks()
        kinds = set(map(type, self.objects()))
        self.quiet = {kind for kind in kinds if not self.finalizes(kind)}
        self.standard = {"__main__", *getattr(sys, "stdlib_module_names", ())} - self.LOUD
        self.known = {name for name, module in sys.modules.items() if self.harmless(name, module)}

    def opened(self, *streams: "Any") -> None:
        """Record the job's standard streams, whose only action at exit is to flush.

        Only the job may refer to them; any other reference would prevent the flush.
        """
        self.streams = [id(each) for each in streams]
        self.own = {id(each) for text in streams for each in (text, text.buffer, text.buffer.raw)}

    def exit_if_safe(self) -> None:
        """Exit with status 0 if that is safe; otherwise return."""
        try:
            if self.threads() or self.callbacks() != self.before or not self.silent():
                return
            self.call_back()
            sys.stdout.flush()
            sys.stderr.flush()
            self.exit(0)
        except BaseException:  # noqa: BLE001  # Python's own finalization reports any error
            pass

    def silent(self) -> bool:
        """Return whether no remaining object acts when it is destroyed."""
        if [id(each) for each in (sys.__stdin__, sys.stdout, sys.stderr)] != self.streams:
            return False
        if any(n.partition(".")[0] not in self.standard for n in sys.modules.keys() - self.known):
            return False
        objects = self.objects()
        kinds = set(map(type, objects))
        loud = {kind for kind in kinds - self.quiet if self.finalizes(kind)}
        references = {kind for kind in kinds if issubclass(kind, self.reference)}
        classes = {kind for kind in kinds if issubclass(kind, type)}
        looked_at = loud | references | classes
        return not any(
            (type(each) in loud and id(each) not in self.own)
            or (type(each) in references and self.calls(each))
            or (type(each) in classes and self.finalizes(each))
            for each in objects
            if type(each) in looked_at
        )

    def harmless(self, name: str, module: "Any") -> bool:
        """Return whether a preloaded module is from the standard library or written in Python."""
        origin = getattr(getattr(module, "__spec__", None), "origin", None) or ""
        return name.partition(".")[0] in self.standard or origin.endswith(".py")

    def calls(self, reference: "Any") -> bool:
        """Return whether a weak reference has a callback that is not one of an abstract class."""
        callback = self.callback.__get__(reference)
        return callback is not None and (
            type(callback) is not type(len) or callback.__name__ != "_destroy"
        )

    @staticmethod
    def finalizes(kind: "Any") -> bool:
        """Return whether a class has a finalizer, without calling its metaclass."""
        try:
            type.__getattribute__(kind, "__del__")
        except AttributeError:
            return False
        return True


class ForkServer:
    """Serves the agent's messages on descriptor 3; `serve` returns in each forked job."""

    SET_DUMPABLE, SET_CHILD_SUBREAPER, CONTROLLING_TERMINAL = 4, 36, 0x540E
    ERROR_SIZE = 16
    """Bytes at the start of a job's file, reserved for its start error."""

    def __init__(self) -> None:
        self.job = 0
        self.busy = False
        """Whether a child is starting or ending, when a signal handler must not reap children."""
        self.spare: Any = None
        self.channel: Any = None
        self.source = ""
        own = {"sys", "End", "ForkServer", "TYPE_CHECKING", "__builtins__"}
        self.names = [each for each in globals().items() if each[0] not in own]
        self.names.append(("__builtins__", sys.modules["builtins"]))
        self.lines = sys.version_info >= (3, 9)  # stderr's buffer is one line's at most
        loaded = set(sys.modules)
        import os

        if sys.hexversion < 0x03080000:
            os.write(3, "old {}.{}.{}".format(*sys.version_info[:3]).encode())
            os._exit(1)
        import _io
        import _locale
        import _signal  # type: ignore[import-not-found]  # missing in typeshed
        import _socket
        import ctypes
        import gc
        import posix
        import resource
        import select
        import textwrap

        self.end = End()
        self.dedent = textwrap.dedent if sys.version_info >= (3, 14) else str
        self.io, self.locale, self.signal, self.os, self.posix = _io, _locale, _signal, os, posix
        self.gc, self.resource, self.array = gc, resource, ctypes.c_uint32 * 6
        self.linecache: Any = None
        if sys.version_info >= (3, 13):
            import linecache

            self.linecache = linecache
        self.locale_error: Any = vars(_locale)["Error"]
        libc = ctypes.CDLL(None, use_errno=True)
        self.prctl, self.capset, self.ioctl = libc.prctl, libc.capset, libc.ioctl
        self.errno, self.version = ctypes.get_errno, (ctypes.c_uint32 * 2)(0x20080522, 0)
        self.socket = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET, 0, 3)
        self.pair, self.packets = _socket.socketpair, (_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
        self.woken, self.wake = posix.pipe2(posix.O_NONBLOCK | posix.O_CLOEXEC)
        self.events = select.poll()
        for each in (3, self.woken):
            self.events.register(each, select.POLLIN)
        limits = [int(each) for each in sys.argv[2:7]]
        self.mask = [n for n in _signal.valid_signals() if limits[0] >> (n - 1) & 1]
        self.limits = (
            (resource.RLIMIT_SIGPENDING, (limits[1], limits[2])),
            (resource.RLIMIT_NOFILE, (limits[3], limits[4])),
        )
        for name in set(sys.modules) - loaded:
            del sys.modules[name]

    def start(self) -> None:
        """Preload modules, protect this process from jobs, and report that it is ready."""
        _, extra, _, _ = self.socket.recvmsg(64, 64)
        file = memoryview(extra[0][2]).cast("i")[0]
        content = self.posix.pread(file, self.posix.fstat(file).st_size, self.ERROR_SIZE)
        self.posix.close(file)
        setup, *preload = content.decode("utf-8", "surrogateescape").split("\0")
        for name in preload:
            try:
                __import__(name)
            except BaseException as error:  # noqa: BLE001  # a module may raise anything: report it
                self.give_up(f"cannot import {name}: {self.shown(error)}")
        if setup:
            try:
                exec(compile(setup, "<setup>", "exec", 0, True), {"__name__": "setup"})
            except BaseException as error:  # noqa: BLE001  # likewise
                self.give_up(f"the setup fails: {self.shown(error)}")
        # posix.wait4 imports this module.
        self.hidden = "resource" not in sys.modules
        sys.modules.setdefault("resource", self.resource)
        with open("/proc/self/environ", "rb") as environ:
            given = dict(
                each.split(b"=", 1) for each in environ.read().split(b"\0") if b"=" in each
            )
        self.ctype = self.locale_of(given)
        coerced = self.posix.environ.get(b"LC_CTYPE")
        self.coerced = None if coerced == given.get(b"LC_CTYPE") else coerced
        self.encodings: Any = [
            (stream.encoding, stream.errors) for stream in (sys.stdin, sys.stdout, sys.stderr)
        ]
        self.program = sys.argv[1]
        self.prctl(self.SET_DUMPABLE, 0, 0, 0, 0)
        if self.prctl(self.SET_CHILD_SUBREAPER, 1, 0, 0, 0):
            self.give_up(f"cannot be a subreaper: errno {self.errno()}")
        # Each signal writes a byte, so that one that arrives between two polls is noticed at once.
        self.signal.set_wakeup_fd(self.wake, warn_on_full_buffer=False)
        self.signal.signal(self.signal.SIGCHLD, self.reap)
        quiet = self.signal.valid_signals() - {self.signal.SIGCHLD}
        self.signal.pthread_sigmask(self.signal.SIG_SETMASK, quiet)
        self.posix.dup2(0, 2)
        self.last = max(map(int, self.posix.listdir("/proc/self/fd"))) + 12
        self.end.prepare()
        self.rehearse()
        self.gc.collect()
        self.gc.freeze()
        self.socket.send("ready {}.{}.{}".format(*sys.version_info[:3]).encode())

    def rehearse(self) -> None:
        """Run the steps of a fork once, so that Python and the C library cache their setup."""
        code = b"try:\n    len([0, 1][0:])\nexcept Exception as error:\n    raise\n"
        env = [name + b"=" + value for name, value in self.posix.environ.items()]
        self.settle([b"-c"], env, code)
        exec(compile(self.source, "<string>", "exec", 0, True), {})
        self.end.silent()
        with self.io.open("/dev/null", "rb") as file:
            self.posix.pread(file.fileno(), self.posix.fstat(file.fileno()).st_size, 0)
        self.posix.closerange(self.last, self.last + 1)
        self.posix.chdir(b"/")
        self.array(0, 0, 0, 0, 0, 0)

    def give_up(self, why: str) -> None:
        """Report why the interpreter cannot start, and exit."""
        self.socket.send(b"failed " + why.encode("utf-8", "backslashreplace")[:2000])
        self.posix._exit(1)

    def serve(self) -> "tuple[str, str, str, int, bool]":
        """Fork for each message; return in the fork, with the arguments of `compile`."""
        self.start()
        while True:
            ready = [descriptor for descriptor, _ in self.events.poll()]
            if self.woken in ready:
                self.posix.read(self.woken, 512)
                self.reap()
            if 3 not in ready:
                continue
            data, extra, _, _ = self.socket.recvmsg(4096, 64)
            if not data:
                self.posix._exit(0)
            forked = self.begin(data, extra) if extra else self.handle_request(data)
            if forked:
                self.hide()
                return self.source, "<string>", "exec", 0, True

    def begin(self, data: bytes, extra: "Any") -> bool:
        """Run a job in the spare fork or else in a new one; return True in the new fork."""
        files = memoryview(extra[0][2]).cast("i").tolist()
        self.busy = True
        pid = self.pass_to_spare(data, extra)
        try:
            pid = pid or self.posix.fork()
        except OSError as error:
            self.socket.send(b"fork %d" % (error.errno or 0))
            pid = -1
        if pid == 0:
            self.become(data, files)
            return True
        for file in files:
            self.posix.close(file)
        if pid > 0:
            self.job = pid
        self.busy = False
        self.reap()
        return False

    def handle_request(self, message: bytes) -> bool:
        """Handle a request of the agent between jobs; return True in a spare fork that received a job."""
        self.reap()
        if message == b"ping":
            self.pong()
            return False
        self.busy = True
        if message == b"spare":
            if self.fork_ahead():
                return True
        else:
            self.drop()
            self.socket.send(b"dropped")
        self.busy = False
        self.reap()
        return False

    def fork_ahead(self) -> bool:
        """Make the spare fork, which cuts the next job's start latency; return True in it, with a job."""
        ours, theirs = self.pair(*self.packets)
        try:
            pid = self.posix.fork()
        except OSError:
            pid = -1  # the job's own fork will report the error
        if pid:
            self.posix.close(theirs.detach())
            self.spare = (pid, ours) if pid > 0 else None
            if pid < 0:
                self.posix.close(ours.detach())
            return False
        self.posix.close(ours.detach())
        self.signal.signal(self.signal.SIGCHLD, self.signal.SIG_DFL)
        self.rehearse()
        data, extra, _, _ = theirs.recvmsg(4096, 64)
        if not extra:
            self.posix._exit(0)
        theirs.detach()
        self.become(data, memoryview(extra[0][2]).cast("i").tolist())
        return True

    def pass_to_spare(self, data: bytes, extra: "Any") -> int:
        """Pass a job to the spare fork; return the fork's pid, or 0 if there is no spare fork."""
        if self.spare is None:
            return 0
        pid, channel = self.spare
        self.spare = None
        try:
            channel.sendmsg([data], extra)
        except OSError:  # the fork has been killed
            self.posix.close(channel.detach())
            return 0
        self.channel = channel
        return int(pid)

    def never_read(self) -> bool:
        """Return whether the spare fork was killed before it read its job."""
        channel, self.channel = self.channel, None
        if channel is None:
            return False
        try:
            channel.recv(1)
        except ConnectionResetError:
            return True
        finally:
            self.posix.close(channel.detach())
        return False

    def drop(self) -> None:
        """End the spare fork, if there is one."""
        if self.spare is not None:
            pid, channel = self.spare
            self.spare = None
            self.posix.close(channel.detach())
            self.posix.kill(pid, self.signal.SIGKILL)
            self.posix.waitpid(pid, 0)

    def reap(self, *_: object) -> None:
        """Reap ended children; report the job's end."""
        if self.busy:
            return
        while True:
            try:
                pid, status, used = self.posix.wait4(-1, self.posix.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if self.spare is not None and pid == self.spare[0]:
                self.posix.close(self.spare[1].detach())
                self.spare = None
            if pid == self.job:
                self.job = 0
                if self.never_read():
                    self.socket.send(b"fork %d" % 125)  # ECANCELED
                    continue
                times = int(used.ru_utime * 1e6), int(used.ru_stime * 1e6), used.ru_maxrss
                self.socket.send(b"end %d %d %d %d" % (status, *times))

    def pong(self) -> None:
        """Report whether there is a child, and which descriptors are open."""
        try:
            options = self.posix.WEXITED | self.posix.WNOHANG | self.posix.WNOWAIT
            self.posix.waitid(self.posix.P_ALL, 0, options)
            children = 1
        except ChildProcessError:
            children = 0
        names = sorted(self.posix.listdir("/proc/self/fd"), key=int)
        self.socket.send("pong {} {}".format(children, ",".join(names)).encode())

    def become(self, data: bytes, files: "list[int]") -> None:
        """Become the job: set its session, descriptors, user and limits, then load its code."""
        step, posix = 1, self.posix
        try:
            uid, gid, switch, terminal, low, high, argc, envc, *groups = map(int, data.split())
            self.signal.signal(self.signal.SIGCHLD, self.signal.SIG_DFL)
            self.signal.set_wakeup_fd(-1)
            self.socket.detach()
            step = 2
            posix.setsid()
            step = 1
            for number, file in enumerate(files[1:]):
                posix.dup2(file, number)
            posix.dup2(files[0], 3)
            posix.closerange(4, self.last)
            step = 3
            if switch:
                if set(groups) != set(posix.getgroups()):
                    posix.setgroups(groups)
                posix.setresgid(gid, gid, gid)
                posix.setresuid(uid, uid, uid)
            if self.capset(self.version, self.array(low, low, 0, high, high, 0)):
                raise OSError(self.errno(), "capset")
            content = posix.pread(3, posix.fstat(3).st_size, self.ERROR_SIZE)
            cwd, *rest = content.split(b"\0")
            step = 4
            posix.chdir(cwd)
            if terminal:
                step = 5
                if self.ioctl(0, self.CONTROLLING_TERMINAL, 1):
                    raise OSError(self.errno(), "ioctl")
            step = 1
            for limit, values in self.limits:
                if values[1]:
                    self.resource.setrlimit(limit, values)
            self.settle(rest[:argc], rest[argc : argc + envc], rest[argc + envc])
            posix.close(3)
            self.prctl(self.SET_DUMPABLE, 1, 0, 0, 0)
            self.signal.pthread_sigmask(self.signal.SIG_SETMASK, self.mask)
        except BaseException as error:  # noqa: BLE001  # the fork must not continue as the server
            posix.pwrite(3, b"%d %d" % (step, getattr(error, "errno", None) or 5), 0)
            posix._exit(127)

    def settle(self, argv: "list[bytes]", env: "list[bytes]", source: bytes) -> None:
        """Set the values that Python reads at startup: arguments, environment and streams."""
        decode = self.os.fsdecode
        text = decode(source)
        sys.argv = [decode(each) for each in argv]
        if hasattr(sys, "orig_argv"):
            sys.orig_argv = [self.program, "-I", "-c", text, *sys.argv[1:]]
        self.source = self.dedent(text) + "\n"
        new = dict(each.split(b"=", 1) for each in env)
        encodings = self.encodings
        if self.locale_of(new) != self.ctype:
            encodings = self.other_locale(new)
        elif self.coerced:
            new[b"LC_CTYPE"] = self.coerced
        old: Any = vars(self.os.environ)["_data"]  # the posix module's own
        for name in old:
            if name not in new:
                self.posix.unsetenv(name)
        for name, value in new.items():
            if old.get(name) != value:
                self.posix.putenv(name, value)
        old.clear()
        old.update(new)
        sys.stdin = sys.__stdin__ = self.stream(0, "r", "<stdin>", *encodings[0])  # type: ignore[misc]
        sys.stdout = sys.__stdout__ = self.stream(1, "w", "<stdout>", *encodings[1])  # type: ignore[misc]
        sys.stderr = sys.__stderr__ = self.stream(2, "w", "<stderr>", *encodings[2])  # type: ignore[misc]
        self.end.opened(sys.stdin, sys.stdout, sys.stderr)
        if "numpy.random" in sys.modules:
            sys.modules["numpy.random"].seed()  # Python reseeds only its own generator at a fork
        try:
            text.encode()
        except UnicodeEncodeError:
            sys.stderr.write("Unable to decode the command from the command line:\n")

    def stream(self, fd: int, mode: str, name: str, encoding: str, errors: str) -> "Any":
        """Return the stream that Python creates for a standard descriptor at startup."""
        buffer: Any = self.io.open(fd, mode + "b", -1, None, None, None, False)
        raw = buffer.raw
        raw.name = name
        lines = raw.isatty() or (fd == 2 and self.lines)
        text: Any = self.io.TextIOWrapper(buffer, encoding, errors, "\n", lines)
        text.mode = mode
        return text

    def other_locale(self, env: "dict[bytes, bytes]") -> "Any":
        """Return the streams' encodings if the job's locale differs from the interpreter's."""
        wanted = self.locale_of(env)
        if wanted in (b"C", b"POSIX"):
            if not env.get(b"LC_ALL"):
                env[b"LC_CTYPE"] = b"C.UTF-8"
            return [("utf-8", "surrogateescape")] * 2 + [("utf-8", "backslashreplace")]
        try:
            self.locale.setlocale(self.locale.LC_CTYPE, wanted.decode())
        except (ValueError, self.locale_error):
            return self.encodings
        encoding = self.locale.nl_langinfo(self.locale.CODESET) or "utf-8"
        escape = wanted in (b"C.UTF-8", b"C.utf8", b"UTF-8")
        return [(encoding, "surrogateescape" if escape else "strict")] * 2 + [
            (encoding, "backslashreplace")
        ]

    def hide(self) -> None:
        """Give the job a new `__main__` module, and restore `sys.modules` and `linecache` for it."""
        if self.hidden:
            del sys.modules["resource"]
        if self.linecache is not None:
            self.linecache.cache.pop("<string>", None)
            getattr(self.linecache, "_interactive_cache", {}).clear()
        main = sys.modules["__main__"] = type(sys)("__main__")
        vars(main).clear()
        for name, value in self.names:
            vars(main)[name] = {"__annotations__": {}, "__doc__": None}.get(name, value)

    @staticmethod
    def locale_of(env: "dict[bytes, bytes]") -> bytes:
        """Return the value of the environment variable that decides encodings."""
        return env.get(b"LC_ALL") or env.get(b"LC_CTYPE") or env.get(b"LANG") or b"C"

    @staticmethod
    def shorten(_: object, error: "Any", trace: "Any") -> None:
        """Remove the first frame, the server's, from the traceback of an error that is raised again."""
        if sys.hexversion >= 0x030B0000:
            error.__traceback__ = trace.tb_next
        else:
            sys.excepthook = ForkServer.hook(sys.excepthook)  # an older Python uses `trace`

    @staticmethod
    def hook(shows: "Any") -> "Any":
        """Return an exception hook that calls `shows` without the first frame of the traceback."""

        def hook(kind: "Any", error: "Any", trace: "Any") -> None:
            error.__traceback__ = trace and trace.tb_next
            shows(kind, error, error.__traceback__)

        return hook

    @staticmethod
    def shown(error: BaseException) -> str:
        """Return an error as one line."""
        return f"{type(error).__name__}: {error}"

    def ready(self, code: "Any") -> "Any":
        """Register the source lines for tracebacks, and return the compiled code unchanged."""
        if self.linecache is not None:
            key = code if hasattr(self.linecache, "_interactive_cache") else "<string>"
            self.linecache._register_code(key, self.source, "<string>")
        return code


if __name__ == "__main__":
    server = ForkServer()
    try:
        exec(server.ready(compile(*server.serve())), vars(sys.modules["__main__"]))
        if sys.gettrace() is sys.getprofile() is None:
            server.end.exit_if_safe()
    except BaseException:
        # A traceback begins with the job's own frame.
        ForkServer.shorten(*sys.exc_info())
        raise
