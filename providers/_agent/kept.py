"""The contents of files that an agent keeps, so that later commands send only their numbers."""

from dataclasses import dataclass, field

from sandboxkit.types import Command, WholeInput

_MOST = 16


@dataclass(slots=True)
class KeptContent:
    """A content that the agent keeps under a number once it is `there`."""

    number: int
    there: bool = False


@dataclass(slots=True)
class KeptContents:
    """The newest 16 contents that were sent over one connection to be kept."""

    _known: dict[bytes, KeptContent] = field(default_factory=dict)
    _last: int = 0

    def of(self, command: Command) -> dict[bytes, KeptContent]:
        """Return the contents of a command's files that are, or will be, kept.

        There are none for a command whose input can be read only once: it could not be sent again in case
        the agent has forgotten a content.
        """
        found: dict[bytes, KeptContent] = {}
        if command.setup is not None and isinstance(command.stdin, WholeInput | None):
            for file in command.setup.files:
                if file.reused and file.content and file.mode is not None:
                    found[file.content] = self._add(file.content)
        return found

    def _add(self, content: bytes) -> KeptContent:
        if content not in self._known:
            self._last += 1
            self._known[content] = KeptContent(self._last)
            if len(self._known) > _MOST:
                del self._known[next(iter(self._known))]
        return self._known[content]
