"""Locates the Docker daemon: by an argument, DOCKER_HOST or the docker context, in that order."""

import os
import socket
import ssl
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlsplit

from docker.context import ContextAPI  # type: ignore[import-untyped]  # ships no types
from docker.errors import DockerException  # type: ignore[import-untyped]
from docker.tls import TLSConfig  # type: ignore[import-untyped]
from docker.utils import kwargs_from_env  # type: ignore[import-untyped]

from sandboxkit.errors import ConfigurationError

DEFAULT_URL = "unix:///var/run/docker.sock"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One daemon's address, for the docker package and for our own streams."""

    url: str
    """The URL as given, for messages and for the docker package."""
    socket_path: str | None = None
    host: str | None = None
    port: int = 0
    tls: Any = None
    """A docker.tls.TLSConfig, which is untyped, or None."""

    @classmethod
    def resolve(cls, base_url: str | None) -> "Endpoint":
        """Find the daemon as the docker command does. Raises ConfigurationError."""
        try:
            settings: dict[str, Any] = {**kwargs_from_env()}  # untyped in the package
            if base_url is not None:
                settings["base_url"] = base_url
            elif "base_url" not in settings:
                name = os.environ.get("DOCKER_CONTEXT") or None
                context = ContextAPI.get_context(name)
                if context is None:
                    raise ConfigurationError(
                        f"docker context {name or 'in the docker configuration'!r} does not "
                        "exist: see `docker context ls`"
                    )
                if context.Host:
                    settings["base_url"] = context.Host
                if context.TLSConfig is not None:
                    settings["tls"] = context.TLSConfig
        except DockerException as error:
            raise ConfigurationError(f"the Docker configuration is not usable: {error}") from error
        url = str(settings.get("base_url") or DEFAULT_URL).removeprefix("http+")
        return cls.parse(url, settings.get("tls"))

    @classmethod
    def parse(cls, url: str, tls: TLSConfig | None = None) -> "Endpoint":
        """Parse a daemon URL; raises ConfigurationError for one that cannot be used."""
        scheme, separator, rest = url.partition("://")
        if not separator or not rest:
            scheme = ""
        if scheme == "unix":
            return cls(url=url, socket_path="/" + unquote(rest).lstrip("/"))
        if scheme in ("tcp", "http", "https"):
            try:
                parts = urlsplit(url)
                host, port = parts.hostname, parts.port
            except ValueError:
                host, port = None, None
            if host:
                secure = tls is not None or scheme == "https"
                return cls(
                    url=url,
                    host=host,
                    port=port or (2376 if secure else 2375),
                    tls=(tls or TLSConfig(verify=True)) if secure else None,
                )
        remedy = "use unix:///path/to.sock or tcp://host:port"
        if scheme == "ssh":
            remedy = (
                "forward the socket with `ssh -nNT -L /tmp/docker.sock:/var/run/docker.sock HOST` "
                "and set DOCKER_HOST=unix:///tmp/docker.sock"
            )
        raise ConfigurationError(f"cannot use Docker at {url!r}: {remedy}")

    def probe(self, seconds: float) -> None:
        """Connect and disconnect; raises the OSError that says why that fails.

        The docker package hides the reason when it cannot connect, and leaks the socket.
        """
        if self.socket_path is None:
            socket.create_connection((self.host, self.port), seconds).close()
            return
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(seconds)
            connection.connect(self.socket_path)

    def ssl_context(self) -> ssl.SSLContext | None:
        """Return the TLS settings for our own streams; None for plain sockets."""
        if self.tls is None:
            return None
        context = ssl.create_default_context(cafile=self.tls.ca_cert)
        if not self.tls.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if self.tls.cert:
            context.load_cert_chain(*self.tls.cert)
        return context
