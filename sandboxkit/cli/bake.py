"""`sandboxkit bake`: vendor images with the agent built in, for faster starts."""

import argparse
from typing import Protocol, TypeVar, runtime_checkable

from sandboxkit import Operation
from sandboxkit.cli import _options, _providers
from sandboxkit.cli._text import safe_line
from sandboxkit.errors import ConfigurationError


class BakedRow(Protocol):
    """An image that a provider made."""

    @property
    def image(self) -> str:
        """The image that it was made from."""
        ...

    @property
    def reference(self) -> str:
        """The vendor's name for it."""
        ...

    @property
    def current(self) -> bool:
        """Whether it contains this version's agent; starts use only such images."""
        ...


_Image = TypeVar("_Image", bound=BakedRow)


@runtime_checkable
class BakingBackend(Protocol[_Image]):
    """A provider that can bake images."""

    async def bake(self, image: str | None, *, renew: bool) -> _Image:
        """Make an image, or return the existing one."""
        ...

    async def baked(self) -> list[_Image]:
        """Return the baked images that are known here."""
        ...

    async def unbake(self, baked: _Image) -> None:
        """Remove a baked image."""
        ...


def add(verbs: _options.Verbs) -> None:
    """Add the verb to the command line."""
    parser = verbs.add_parser(
        "bake",
        help="make an image with the agent in it at a hosted vendor, which starts faster",
        description=(
            "Make an image at a hosted vendor that has sandboxkit's agent in it: a snapshot on E2B "
            "and Daytona, an image on Modal. Later starts from the same image find it by "
            "themselves. Another version of sandboxkit needs another one: bake again, and the old "
            "one is removed. Prints what it was made of and its name at the vendor."
        ),
        epilog=(
            "What this user's state folder knows of is listed and removed. On a machine that does not "
            "know it, baking again finds what is at E2B or Daytona, and makes nothing."
        ),
    )
    _options.provider(parser)
    parser.add_argument("--image", help="what to make it of (default: the provider's)")
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--renew", action="store_true", help="make it anew, as when the image has changed"
    )
    what.add_argument("--list", action="store_true", dest="listed", help="name those there are")
    what.add_argument(
        "--rm", action="store_true", help="remove that of --image, or without it all of them"
    )
    parser.set_defaults(verb=main)


def main(args: argparse.Namespace) -> int:
    """Run the verb."""

    async def work() -> list[BakedRow]:
        async with _providers.loaded(_options.provider_name(args)) as provider:
            if not isinstance(provider, BakingBackend):
                raise ConfigurationError(
                    f"provider {provider.name!r} has nothing to bake: it sends no agent to its sandboxes"
                )
            if not (args.rm or args.listed):
                return [await provider.bake(args.image, renew=args.renew)]
            found = [each for each in await provider.baked() if args.image in (None, each.image)]
            if args.rm:
                for each in found:
                    await provider.unbake(each)
            return found

    for each in Operation(work()).result():
        old = "" if each.current else " (of another version, not used)"
        print(safe_line(f"{each.image or 'default'} {each.reference}{old}"))
    return 0
