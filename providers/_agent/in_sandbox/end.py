"""How a fork of the interpreter ends. It is sent with interpreter.py, whose job it is part of."""

import sys

# A job may change the builtins; what is defined from here on does not go by them.
globals()["__builtins__"] = vars(__builtins__).copy()

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class End:
    """Ends a job at once where nothing would be seen of Python's own end.

    That one takes every object apart, those of the preloaded modules as well, and costs more than
    all else of a small job. It is seen where an object does something when it goes, where threads
    or callbacks are left, or where a library has an end of its own: such a job Python ends itself,
    and each that failed.
    """

    LOUD = frozenset(("_ctypes", "_curses", "_dbm", "_gdbm", "_interpreters", "_sqlite3")) | {
        *("_testcapi", "_tkinter", "_xxsubinterpreters", "gc", "readline")
    }
    """What does something at the end, or lets a job do it, and nobody can see that it will."""

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
        """Look at what is there before any job: a job's modules and classes are compared with it."""
        self.before = self.callbacks()
        kinds = set(map(type, self.objects()))
        self.quiet = {kind for kind in kinds if not self.finalizes(kind)}
        self.standard = {"__main__", *getattr(sys, "stdlib_module_names", ())} - self.LOUD
        self.known = {name for name, module in sys.modules.items() if self.harmless(name, module)}

    def opened(self, *streams: "Any") -> None:
        """Note which the job's standard streams are: that they are flushed is all that they do.

        Nobody but the job refers to them: else what is in them would not be flushed as they go.
        """
        self.streams = [id(each) for each in streams]
        self.own = {id(each) for text in streams for each in (text, text.buffer, text.buffer.raw)}

    def come(self) -> None:
        """End the job with status 0, or return."""
        try:
            if self.threads() or self.callbacks() != self.before or not self.silent():
                return
            self.call_back()
            sys.stdout.flush()
            sys.stderr.flush()
            self.exit(0)
        except BaseException:  # noqa: BLE001  # Python's own end says what there is to say
            pass

    def silent(self) -> bool:
        """Whether nothing that the job has left does anything when it goes."""
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
        """Whether a module that was there before any job is the standard library's or no library's."""
        origin = getattr(getattr(module, "__spec__", None), "origin", None) or ""
        return name.partition(".")[0] in self.standard or origin.endswith(".py")

    def calls(self, reference: "Any") -> bool:
        """Whether somebody hears of the end of what is referred to, but for abstract classes."""
        callback = self.callback.__get__(reference)
        return callback is not None and (
            type(callback) is not type(len) or callback.__name__ != "_destroy"
        )

    @staticmethod
    def finalizes(kind: "Any") -> bool:
        """Whether a class has a finalizer; nothing of a metaclass is called."""
        try:
            type.__getattribute__(kind, "__del__")
        except AttributeError:
            return False
        return True
