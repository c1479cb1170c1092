"""`sandboxkit bake`: vendor images with the agent built in, for faster starts."""

import argparse
from typing import Protocol, TypeVar, runtime_checkable

from sandboxkit import Operation
from sandboxkit.cli import _options, _providers
from sandboxkit.cli._text import safe_line
from sandboxkit.errors import ConfigurationError


class BakedRow(Protocol):
    """A baked image: a vendor's image with the agent built in."""

    @property
    def image(self) -> str:
        """The image from which it was made."""
        ...

    @property
    def reference(self) -> str:
        """The vendor's name for the baked image."""
        ...

    @property
    def current(self) -> bool:
        """Whether it contains the agent of this sandboxkit version; starts use only such images."""
        ...


_Image = TypeVar("_Image", bound=BakedRow)


@runtime_checkable
class BakingBackend(Protocol[_Image]):
    """A provider that can bake images."""

    async def bake(self, image: str | None, *, renew: bool) -> _Image:
        """Bake an image; without `renew`, return an existing one. None: the provider's default image."""
        ...

    async def baked(self) -> list[_Image]:
        """Return the baked images that this user's state folder records."""
        ...

    async def unbake(self, baked: _Image) -> None:
        """Remove a baked image."""
        ...


def add(verbs: _options.Verbs) -> None:
    """Add the verb to the command line."""
    parser = verbs.add_parser(
        "bake",
        help="build sandboxkit's agent into an image at a hosted vendor, for faster starts",
        description=(
            "Build sandboxkit's agent into an image at a hosted vendor: a snapshot on E2B and Daytona, "
            "an image on Modal. Later starts from the same image use the baked one automatically. Each "
            "version of sandboxkit needs its own: bake again, and the old one is removed. Prints the "
            "original image and the baked one's name at the vendor."
        ),
        epilog=(
            "--list and --rm apply to the baked images that this user's state folder records. On another "
            "machine, baking again finds an existing image at E2B or Daytona, and builds nothing."
        ),
    )
    _options.provider(parser)
    parser.add_argument("--image", help="the image to bake (default: the provider's)")
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--renew", action="store_true", help="bake again, for example after the image changed"
    )
    what.add_argument("--list", action="store_true", dest="listed", help="list the baked images")
    what.add_argument(
        "--rm", action="store_true", help="remove the one of --image, or all without --image"
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
