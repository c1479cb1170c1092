"""How values show themselves to people: in notebooks, and in `help()`."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sandboxkit.display.page import Page


class Shown:
    """Something that a notebook shows as a small table, and a terminal as one line."""

    __slots__ = ()

    def _page(self) -> "Page":
        """What is shown of it."""
        from sandboxkit.display import pages  # only notebooks want it

        return pages.page(self)

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        page = self._page()
        return {"text/plain": page.text(), "text/html": page.html()}
