"""Egress rules: the names, ports, addresses and limits that a user allows."""

import functools
import ipaddress
import os
import ssl
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from typing import Any

from sandboxkit._calls import _arguments
from sandboxkit._calls._arguments import explained
from sandboxkit.egress import _names
from sandboxkit.egress._audit import EgressRecord
from sandboxkit.egress._native import NativeRules, check_alone, native_rules
from sandboxkit.errors import ConfigurationError

WEB_PORTS = (80, 443)
"""The ports that a rule without a port allows."""
INTERNAL = ".internal"
"""The suffix of the names by which a sandbox reaches the host of a credential."""
_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
_OURS = ("host", "connection", "content-length", "transfer-encoding", "te", "trailer", "upgrade")
"""Headers that only the proxy sets, so that a credential may not."""

Log = str | os.PathLike[str] | Callable[[EgressRecord], object] | None
AnyNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network


@explained
@dataclass(frozen=True, slots=True)
class Credential:
    """Secret headers that this process adds to a sandbox's requests to one host.

    Commands in the sandbox call `http://HOST.internal/...` through the proxy, and never see the headers.
    This process then calls `host` over TLS.
    """

    host: str
    """The host's name, with a port if it is not 443, such as "api.example.com"."""
    headers: Mapping[str, str] = field(repr=False)
    """Headers to add, such as {"Authorization": "Bearer ..."}; they replace the sandbox's own."""
    methods: Sequence[str] = ("GET", "HEAD", "POST")
    """The allowed request methods."""
    paths: Sequence[str] = ("/*",)
    """The allowed request paths; a `*` at the end matches any rest."""

    def __post_init__(self) -> None:
        """Check the fields and freeze them. Raises ConfigurationError."""
        _target("Credential.host", self.host, 443)
        example = '{"Authorization": "Bearer ..."}'
        headers = _arguments.mapping("Credential.headers", self.headers, example)
        for name, value in headers.items():
            _check_header(name, value)
        methods, paths = _texts("methods", self.methods), _texts("paths", self.paths)
        for method in methods:
            _arguments.one_of("Credential.methods", method, _METHODS)
        for path in paths:
            if not path.startswith("/") or "*" in path[:-1] or not path.isascii():
                _arguments.refuse("Credential.paths", path, "'/v1/models' or '/v1/*'")
        _freeze(self, headers=headers, methods=methods, paths=paths)

    @property
    def target(self) -> tuple[str, int]:
        """The name and port of the host to connect to."""
        return _target("Credential.host", self.host, 443)

    def allows_path(self, path: str) -> bool:
        """Return whether a request may have this path, without its query."""
        return any(
            path.startswith(each[:-1]) if each.endswith("*") else path == each
            for each in self.paths
        )


@explained
@dataclass(frozen=True, slots=True)
class Egress:
    """The servers that a sandbox may reach, as a value of its option `network`.

    The sandbox itself has no network. A proxy for HTTP and TLS (CONNECT) listens on its loopback, and each
    command gets `http_proxy` and similar variables. This process checks the rules, resolves names and
    connects; when it ends, the sandbox reaches nothing. `docs/guides/egress.md` lists what is refused.
    Raises ConfigurationError for an invalid field.
    """

    allow: Sequence[str] = ()
    """Names with an optional port: "pypi.org", "*.github.com", "mirror.corp:8080", or "*" for every name.
    "*.x" covers all names below x and not x. Without a port, 80 and 443 are allowed."""
    private: Sequence[str] = ()
    """Non-public addresses and networks to allow, such as "10.1.0.0/16"."""
    credentials: Sequence[Credential] = ()
    """Hosts that the sandbox reaches as `http://HOST.internal`, with headers that it never sees."""
    log: Log = None
    """A file to which each decision is appended as a line of JSON, or a function that is called with each
    `EgressRecord` on sandboxkit's own thread, which it must not block. None: no record."""
    hosts: Mapping[str, str] = field(default_factory=dict)
    """Fixed IP addresses by host name, as in /etc/hosts; these names are not resolved."""
    max_connections: int = 128
    """How many connections may be open at a time; further ones are refused."""
    max_bytes: int = 16 << 30
    """The total number of bytes that may pass, both directions together; then everything is refused."""
    max_header_bytes: int = 16 << 10
    """The largest head of a request (bytes)."""
    header_seconds: float = 20.0
    """Time limit (s) for a request's head, and for the first message of TLS."""
    idle_seconds: float = 300.0
    """How long (s) a connection may be idle before it is closed."""
    tls: ssl.SSLContext | None = field(default=None, repr=False)
    """The context that verifies the hosts of credentials. None: this machine's certificate authorities."""
    native: bool = False
    """Use the vendor's own list of allowed servers instead of the proxy, if the provider has one. `allow`
    then takes names without a port and IPv4 networks; every other field must keep its default."""

    def __post_init__(self) -> None:
        """Check the fields and freeze them. Raises ConfigurationError."""
        allow, private = _texts("allow", self.allow), _texts("private", self.private)
        if _arguments.flag("Egress.native", self.native):
            check_alone([name for name in self._given() if name not in ("allow", "native")])
            native_rules(allow)
            _freeze(self, allow=allow)
            return
        for rule in allow:
            _rule(rule)
        for text in private:
            _network(text)
        hosts = _arguments.mapping("Egress.hosts", self.hosts, '{"mirror.corp": "10.1.2.3"}')
        for name, address in hosts.items():
            _check_host(name, address)
        credentials = self.credentials
        if isinstance(credentials, Credential) or not isinstance(credentials, Sequence):
            _arguments.refuse("Egress.credentials", credentials, "a list of Credential(...)")
        for each in credentials:
            if not isinstance(each, Credential):
                _arguments.refuse("Egress.credentials", each, "Credential('host', {...})")
        names = [each.target[0] for each in credentials]
        if len(set(names)) < len(names):
            raise ConfigurationError(
                f"Egress.credentials has two of one host: {', '.join(names)}; merge them"
            )
        log: object = self.log
        if not (log is None or callable(log) or isinstance(log, str | os.PathLike)):
            _arguments.refuse("Egress.log", log, "a path, or a function that takes a record")
        for name in ("max_connections", "max_bytes", "max_header_bytes"):
            _arguments.size(f"Egress.{name}", getattr(self, name))
        for name in ("header_seconds", "idle_seconds"):
            _arguments.positive(f"Egress.{name}", getattr(self, name), unit="seconds")
        _freeze(self, allow=allow, private=private, hosts=hosts, credentials=tuple(credentials))

    @property
    def native_rules(self) -> NativeRules | None:
        """The rules for the vendor's list; None without `native`."""
        return native_rules(self.allow) if self.native else None

    def _given(self) -> list[str]:
        """Return the names of the fields whose value is not the default."""
        found: list[str] = []
        for each in fields(self):
            make = each.default_factory
            default, value = each.default if make is MISSING else make(), getattr(self, each.name)
            if value not in (default, []):
                found.append(each.name)
        return found

    def allows(self, name: str, port: int) -> bool:
        """Return whether a rule allows a name, in lower case, and a port."""
        rules, labels = _by_pattern(tuple(self.allow)), name.split(".")
        above = (f"*.{'.'.join(labels[at:])}" for at in range(1, len(labels)))
        return any(port in rules.get(pattern, ()) for pattern in ("*", name, *above))

    def allows_private(self, address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
        """Return whether `private` lists an address."""
        return any(address in network for network in _networks(tuple(self.private)))

    def credential(self, name: str) -> Credential | None:
        """Return the credential for `HOST.internal`, a name in lower case; None if there is none."""
        found = (each for each in self.credentials if name == each.target[0] + INTERNAL)
        return next(found, None)


@functools.lru_cache(maxsize=64)
def _by_pattern(allow: tuple[str, ...]) -> dict[str, set[int]]:
    """Return the ports that rules allow by their pattern, parsed once: every request asks."""
    found: dict[str, set[int]] = {}
    for pattern, ports in map(_rule, allow):
        found.setdefault(pattern, set()).update(ports)
    return found


@functools.lru_cache(maxsize=64)
def _networks(private: tuple[str, ...]) -> tuple[AnyNetwork, ...]:
    return tuple(map(_network, private))


def _rule(text: str) -> tuple[str, Sequence[int]]:
    """Return a rule's pattern and ports. Raises ConfigurationError."""
    pattern, colon, number = text.partition(":")
    port = _names.port(number) if colon else 0
    name = pattern.removeprefix("*.")
    if port is None or (pattern != "*" and _names.host(name) is None):
        _arguments.refuse(
            "Egress.allow",
            text,
            "a host name with an optional port, such as 'pypi.org', '*.github.com' or 'mirror.corp:8080' "
            "(no scheme, path or IP address; give an address a name with hosts=)",
        )
    return pattern.lower(), (port,) if port else WEB_PORTS


def _network(text: str) -> AnyNetwork:
    try:
        return ipaddress.ip_network(text)
    except ValueError as error:
        _arguments.refuse("Egress.private", text, f"'10.1.2.3' or '10.1.0.0/16' ({error})")


def _target(what: str, text: str, default: int) -> tuple[str, int]:
    """Return the name and port of "host" or "host:port". Raises ConfigurationError."""
    name, colon, number = _arguments.text(what, text).partition(":")
    host, port = _names.host(name), _names.port(number) if colon else default
    if host is None or port is None:
        _arguments.refuse(what, text, "a host's name, such as 'api.example.com'")
    return host, port


def _check_host(name: str, address: str) -> None:
    if not isinstance(name, str) or _names.host(name) != name:
        _arguments.refuse("Egress.hosts", name, "names in lower case, such as 'mirror.corp'")
    try:
        ipaddress.ip_address(address)
    except ValueError:
        _arguments.refuse(f"Egress.hosts[{name!r}]", address, "an IP address such as '10.1.2.3'")


def _check_header(name: str, value: str) -> None:
    # The value is a secret: no message shows it.
    token = isinstance(name, str) and name.isascii() and name.replace("-", "a").isalnum()
    if not token or name.lower() in _OURS:
        _arguments.refuse("Credential.headers", name, "names such as 'Authorization'")
    printable = isinstance(value, str) and value.isascii() and value.strip() == value
    if not printable or not value or any(unicodedata.category(each) == "Cc" for each in value):
        raise ConfigurationError(
            f"Credential.headers[{name!r}] is empty, or has spaces around it, control characters or "
            "characters outside ASCII; give the header's value as it is sent"
        )


def _texts(name: str, value: Sequence[str]) -> tuple[str, ...]:
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        _arguments.refuse(name, value, "a list of strings, such as ['pypi.org']")
    return tuple(_arguments.text(name, each) for each in value)


# Any: the checked values of the fields, which are of many types.
def _freeze(of: object, **fields: Any) -> None:
    for name, value in fields.items():
        object.__setattr__(of, name, value)
