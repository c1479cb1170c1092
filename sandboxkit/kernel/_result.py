"""The result of a cell: outcome, outputs and error."""

import base64
import html
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

from sandboxkit._calls._foreign_names import foreign_names
from sandboxkit.display import Displayable
from sandboxkit.display.page import Page
from sandboxkit.types import Ending

_MOODS = {"ok": "good", "timed_out": "open", "interrupted": "open"}
_PICTURES = 8
_PAGE_BYTES = 1 << 20
_FRAME = '<iframe sandbox="" style="width:100%;height:16em;border:0" srcdoc="{}"></iframe>'
_POLICY = (
    '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
    "style-src 'unsafe-inline'; img-src data:\">"
)


class CellOutcome(StrEnum):
    """How a cell ended."""

    OK = "ok"
    """The cell ran to its end."""
    ERROR = "error"
    """The cell raised an exception, or is not valid Python."""
    TIMED_OUT = "timed_out"
    """The cell ran past its timeout and was interrupted."""
    INTERRUPTED = "interrupted"
    """The caller interrupted the cell, or restarted or closed the kernel."""
    DIED = "died"
    """The kernel ended during the cell: `os._exit`, a crash, a kill from within, out of memory."""


@dataclass(frozen=True, slots=True)
class CellError:
    """The exception that a cell raised; `KernelEnded` with the reason if the kernel ended."""

    name: str
    message: str
    traceback: str = ""
    """The traceback as Python prints it, beginning at the cell's own lines."""


@dataclass(frozen=True, slots=True)
class CellOutput:
    """One piece of a cell's output."""

    kind: Literal["stdout", "stderr", "display", "result"]
    text: str
    """The printed text, or the plain text of a displayed value."""
    # Any: JSON under "application/json".
    data: Mapping[str, Any] = field(default_factory=dict)
    """A displayed value by media type: bytes for pictures, plain data for JSON, else text."""


@foreign_names
@dataclass(frozen=True, slots=True)
class CellResult(Displayable):
    """The result of a cell: its output, displayed values and error, and how it ended.

    Do not trust it: except for `outcome` TIMED_OUT and `ending`, the code that ran can forge
    everything here. A cell can print or display anything, and it can find in its own process the
    pipes that carry results.
    """

    outcome: CellOutcome
    outputs: tuple[CellOutput, ...]
    """Outputs in order of arrival, beginning with the output of threads and child processes since the
    previous result."""
    error: CellError | None
    """The error; None if the outcome is OK."""
    execution_count: int | None
    """The cell's number since the kernel's start; None if the kernel did not report it."""
    duration: float
    """Seconds that the cell took."""
    truncated: bool = False
    """Whether the outputs exceeded the limit, so that their middle was dropped."""
    ending: Ending | None = None
    """How the kernel ended, with the loss of its state; None while it lives."""

    @property
    def ok(self) -> bool:
        """Whether the cell ran to its end."""
        return self.outcome is CellOutcome.OK

    @property
    def ended(self) -> bool:
        """Whether the kernel is gone, together with the state of all cells."""
        return self.ending is not None

    @property
    def stdout(self) -> str:
        """The standard output of the code and of the programs that it ran."""
        return "".join(each.text for each in self.outputs if each.kind == "stdout")

    @property
    def stderr(self) -> str:
        """The standard error output, without the traceback."""
        return "".join(each.text for each in self.outputs if each.kind == "stderr")

    @property
    def text(self) -> str | None:
        """The value of the last expression as text; None if it is None or there is none."""
        results = [each.text for each in self.outputs if each.kind == "result"]
        return results[-1] if results else None

    @property
    def html(self) -> str | None:
        """The last expression's value, or else the last displayed value, as HTML, or None. It may contain
        scripts."""
        found = self._last("text/html")
        return found if isinstance(found, str) else None

    @property
    def png(self) -> bytes | None:
        """The last expression's value, or else the last displayed value, as a PNG image, or None."""
        found = self._last("image/png")
        return found if isinstance(found, bytes) else None

    @property
    def json(self) -> Any:  # Any: JSON
        """The last expression's value, or else the last displayed value, as JSON data, or None.

        Available for dicts and lists that JSON can represent, and for objects with a `_repr_json_`.
        """
        return self._last("application/json")

    def _last(self, kind: str) -> object:
        found = [each for each in self.outputs if kind in each.data]
        found.sort(key=lambda each: each.kind == "result")
        return found[-1].data[kind] if found else None

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        """Return the notebook's view: HTML outputs appear in frames without scripts, because they are
        untrusted."""
        rows = {"seconds": f"{self.duration:.3g}"}
        if self.ending is not None:
            rows["kernel"] = f"ended ({self.ending.value.replace('_', ' ')}): its state is gone"
        if self.truncated:
            rows["truncated"] = "the middle of the output was left out"
        texts = {"stdout": self.stdout, "stderr": self.stderr, "result": self.text or ""}
        if self.error is not None:
            summary = f"{self.error.name}: {self.error.message}"
            texts["error"] = self.error.traceback or summary
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
