"""Resolves each name once, so that the addresses that are checked are also those that are dialled."""

import asyncio
import errno
import ipaddress
import socket

import anyio
import anyio.to_thread
from anyio.abc import SocketAttribute, SocketStream

from sandboxkit.egress._refused import EgressRefusedError
from sandboxkit.egress._rules import Egress
from sandboxkit.egress._shares import LOOKUPS
from sandboxkit.provider import close_in_forks

_RESOLVE_SECONDS = _DIAL_SECONDS = 10.0
_ALL_DIALS_SECONDS = 30.0
_ADDRESSES = 64
"""The largest number of addresses of a name; each is checked on the event loop."""
_NOT_PUBLIC = tuple(
    ipaddress.ip_network(text)
    for text in (
        "100.64.0.0/10",  # carrier-grade NAT
        "168.63.129.16/32",  # Azure's agent of the machine
        "192.0.0.0/24",  # protocol assignments
        "192.88.99.0/24",  # 6to4 relays
        "::/96",  # IPv4-compatible
        "::ffff:0:0/96",  # IPv4-mapped
        "64:ff9b::/96",  # NAT64
        "64:ff9b:1::/48",  # NAT64 of a local network
        "2001::/23",  # Teredo and other protocol assignments
        "2002::/16",  # 6to4
        "3fff::/20",  # documentation
        "5f00::/16",  # segment routing
        "100::/63",  # discarded
        "fec0::/10",  # site-local
    )
)


def is_public(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    """Return whether an address is a public unicast address that embeds no other address."""
    if any(address in network for network in _NOT_PUBLIC):
        return False
    return address.is_global and not (address.is_multicast or address.is_reserved)


def is_own(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    """Return whether an address is one of this machine's own: a connection to it would not leave the machine.

    Raises OSError if no socket can be made to find out.
    """
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        probe = socket.socket(family, socket.SOCK_DGRAM)
    except OSError as error:
        if error.errno == errno.EAFNOSUPPORT:
            return False  # nothing is dialled there
        raise
    with probe:
        try:
            probe.connect((str(address), 9))  # sends nothing
        except OSError:
            return False  # it cannot be reached either
        return ipaddress.ip_address(probe.getsockname()[0].partition("%")[0]) == address


async def addresses(sandbox_id: str, egress: Egress, name: str, port: int) -> list[str]:
    """Return the addresses of a name.

    Raises EgressRefusedError if there is none or too many, or if `egress` does not allow one of them.
    """
    found = [egress.hosts[name]] if name in egress.hosts else await _lookup(sandbox_id, name, port)
    for text in found:
        address = ipaddress.ip_address(text)
        try:
            public = is_public(address) and not is_own(address)
        except OSError as error:  # too many open files
            raise EgressRefusedError(502, f"{text} cannot be checked: {error}") from error
        if not (public or egress.allows_private(address)):
            raise EgressRefusedError(
                403,
                f"{name} has the address {text}, which is not public and not in private=",
                shown=f"{name} has an address that is not allowed",
            )
    return found


async def _lookup(sandbox_id: str, name: str, port: int) -> list[str]:
    async def run() -> list[str] | str:
        """Return the addresses, or the problem; nobody may wait for it any more."""
        try:
            infos = await anyio.to_thread.run_sync(
                lambda: socket.getaddrinfo(name, port, type=socket.SOCK_STREAM),
                limiter=anyio.CapacityLimiter(1),
            )
        except (OSError, UnicodeError) as error:
            return str(error)
        finally:
            LOOKUPS.give_back(sandbox_id)
        return list(dict.fromkeys(str(info[4][0]) for info in infos))

    found: list[str] | str = f"no answer within {_RESOLVE_SECONDS:g} s"
    with anyio.move_on_after(_RESOLVE_SECONDS):
        await LOOKUPS.take(sandbox_id)
        found = await asyncio.shield(asyncio.create_task(run()))
    if isinstance(found, str):
        raise EgressRefusedError(502, f"{name} cannot be resolved: {found}")
    if not 0 < len(found) <= _ADDRESSES:
        raise EgressRefusedError(502, f"{name} has {len(found)} addresses, not 1 to {_ADDRESSES}")
    return found


async def dial(name: str, addresses: list[str], port: int) -> tuple[SocketStream, str]:
    """Connect to the first address that accepts; return the connection and the address.

    Raises EgressRefusedError if none accepts within 10 s each, and 30 s in all.
    """
    problem: OSError | None = None
    end = anyio.current_time() + _ALL_DIALS_SECONDS
    for address in addresses:
        try:
            with anyio.fail_after(min(_DIAL_SECONDS, end - anyio.current_time())):
                stream = await anyio.connect_tcp(address, port)
        except OSError as error:
            problem = error
        else:
            close_in_forks(stream.extra(SocketAttribute.raw_socket))
            return stream, address
    raise EgressRefusedError(
        502,
        f"{name}:{port} cannot be reached at {', '.join(addresses)}: {str(problem) or 'no answer'}",
        shown=f"{name}:{port} cannot be reached",
    ) from problem
