"""Display of values for people: in notebooks and in `help()`."""

from functools import singledispatch

from sandboxkit.display.page import Page


class Displayable:
    """Base class of values that a notebook shows as a small table and a terminal as one line."""

    __slots__ = ()

    def _page(self) -> Page:
        """Return the page that a notebook shows. A class overrides this or registers with `page_of`."""
        return page_of(self)

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        page = self._page()
        return {"text/plain": page.text(), "text/html": page.html()}


@singledispatch
def page_of(thing: Displayable) -> Page:
    """Return the page that a notebook shows for `thing`; `display.pages` registers the public classes."""
    raise NotImplementedError(f"{type(thing).__name__} has no page")
