"""What a cell's run results in."""

import base64
import html
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

from sandboxkit.display import Shown
from sandboxkit.types import Ending

_MOODS = {"ok": "good", "timed_out": "open", "interrupted": "open"}
_PICTURES = 8
_PAGE_BYTES = 1 << 20
_FRAME = '<iframe sandbox="" style="width:100%;height:16em;border:0" srcdoc="{}"></iframe>'
_POLICY = (
    '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
    "style-src 'unsafe-inline'; img-src data:\">"
)


class Outcome(StrEnum):
    """How a cell came to its end."""

    OK = "ok"
    """It ran to its end."""
    ERROR = "error"
    """It raised, or is no Python."""
    TIMED_OUT = "timed_out"
    """It ran past its timeout, and was interrupted."""
    INTERRUPTED = "interrupted"
    """Its caller interrupted it, or restarted or closed the kernel."""
    DIED = "died"
    """The kernel ended under it: `os._exit`, a crash, a kill from within, want of memory."""


@dataclass(frozen=True, slots=True)
class CellError:
    """What a cell raised; for a kernel that has ended, `KernelEnded` and how it did."""

    name: str
    message: str
    traceback: str = ""
    """As Python prints it, from the cell's own lines on."""


@dataclass(frozen=True, slots=True)
class CellOutput:
    """One piece of a cell's output."""

    kind: Literal["stdout", "stderr", "display", "result"]
    text: str
    """What was printed; of what was shown, its plain text."""
    # Any: JSON under "application/json".
    data: Mapping[str, Any] = field(default_factory=dict)
    """Of what was shown: what it is in each media type. Pictures are bytes, JSON is plain data, and
    all else is text."""


@dataclass(frozen=True, slots=True)
class CellResult(Shown):
    """What a cell printed, showed and raised, and how it ended.

    All of it but `outcome` TIMED_OUT and `ending` is the word of the code that ran, as everything
    that comes out of a sandbox: a cell can print or show anything, and one that looks for them in its
    own process finds the pipes through which a result goes.
    """

    outcome: Outcome
    outputs: tuple[CellOutput, ...]
    """In the order they came, beginning with what threads and children have printed since the
    result before."""
    error: CellError | None
    """None where the outcome is OK."""
    execution_count: int | None
    """The cell's number since the kernel's start; None where nobody said."""
    duration: float
    """Seconds."""
    truncated: bool = False
    """Whether something in the middle was left out, over the output limit."""
    ending: Ending | None = None
    """How the kernel ended, and the state with it; None while it lives."""

    @property
    def ok(self) -> bool:
        """Whether it ran to its end."""
        return self.outcome is Outcome.OK

    @property
    def ended(self) -> bool:
        """Whether the kernel is gone, and with it all that earlier cells left."""
        return self.ending is not None

    @property
    def stdout(self) -> str:
        """What was printed on standard output, by the code and the programs that it ran."""
        return "".join(each.text for each in self.outputs if each.kind == "stdout")

    @property
    def stderr(self) -> str:
        """What was printed on standard error. The traceback is not in it."""
        return "".join(each.text for each in self.outputs if each.kind == "stderr")

    @property
    def text(self) -> str | None:
        """The last expression as text; None where it is None, or no expression."""
        results = [each.text for each in self.outputs if each.kind == "result"]
        return results[-1] if results else None

    @property
    def html(self) -> str | None:
        """As HTML: the last expression, else what was shown last. Scripts may be in it."""
        found = self._last("text/html")
        return found if isinstance(found, str) else None

    @property
    def png(self) -> bytes | None:
        """As a picture: the last expression, else what was shown last, such as a figure."""
        found = self._last("image/png")
        return found if isinstance(found, bytes) else None

    @property
    def json(self) -> Any:  # Any: JSON
        """As plain data: dicts and lists that JSON can hold, and what has a `_repr_json_`."""
        return self._last("application/json")

    def _last(self, kind: str) -> object:
        found = [each for each in self.outputs if kind in each.data]
        found.sort(key=lambda each: each.kind == "result")
        return found[-1].data[kind] if found else None

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        """Pictures, and HTML in a frame without scripts: it comes from a sandbox."""
        from sandboxkit.display.page import Page  # only notebooks want it

        rows = {"seconds": f"{self.duration:.3g}"}
        if self.ending is not None:
            rows["kernel"] = f"ended ({self.ending.value.replace('_', ' ')}): its state is gone"
        if self.truncated:
            rows["truncated"] = "something in the middle was left out"
        texts = {"stdout": self.stdout, "stderr": self.stderr, "result": self.text or ""}
        if self.error is not None:
            said = f"{self.error.name}: {self.error.message}"
            texts["error"] = self.error.traceback or said
        mood = _MOODS.get(self.outcome.value, "bad")
        headline = self.outcome.value.replace("_", " ")
        page = Page("CellResult", headline, mood, rows, texts)
        return {"text/plain": page.text(), "text/html": page.html() + "".join(self._pictures())}

    def _pictures(self) -> list[str]:
        shown: list[str] = []
        left = _PAGE_BYTES
        for each in self.outputs:
            picture, text = each.data.get("image/png"), each.data.get("text/html")
            if isinstance(picture, bytes) and len(picture) < left:
                left -= len(picture)
                source = base64.b64encode(picture).decode()
                shown.append(f'<img src="data:image/png;base64,{source}">')
            elif isinstance(text, str) and len(text) < left:
                left -= len(text)
                shown.append(_FRAME.format(html.escape(_POLICY + text)))
        return shown[:_PICTURES]
