"""The fast exit of a forked job. The provider sends this file together with interpreter.py."""

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
