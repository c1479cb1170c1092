"""Reads the cluster's address and our credentials from a kubeconfig or this pod's service account."""

import os
import ssl
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import yaml  # type: ignore[import-untyped]  # no stubs
from kubernetes_asyncio import client, config

from sandboxkit.errors import ConfigurationError, SandboxError
from sandboxkit.providers.kubernetes._errors import NAME
from sandboxkit.providers.kubernetes._login import logged_in

__all__ = ["Access", "read_access"]

_NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_MALFORMED = (
    config.ConfigException,
    yaml.YAMLError,
    LookupError,
    TypeError,
    ValueError,
    AttributeError,
    OSError,
)
"""The exceptions that kubernetes_asyncio raises for a malformed kubeconfig."""


@dataclass(frozen=True, slots=True)
class Access:
    """The address, credentials and TLS settings of a connection to the API server."""

    server: str
    namespace: str
    ssl: ssl.SSLContext | bool
    server_name: str | None
    """The host name expected in the certificate; None for that of the server's address."""
    proxy: str | None
    configuration: client.Configuration

    async def headers(self) -> dict[str, str]:
        """Return the authorization headers; a service account's token is re-read every minute."""
        try:
            token = await self.configuration.get_api_key_with_prefix("BearerToken")
        except (config.ConfigException, OSError) as error:
            raise _unusable(error, "the service account's token") from error
        return {"Authorization": str(token)} if token else {}


async def read_access(kubeconfig: str | None, context: str | None) -> Access:
    """Read the configuration, and run the login program if the context has one.

    `kubeconfig` may list several files, as $KUBECONFIG does. None means $KUBECONFIG, then
    ~/.kube/config, then the pod's service account. Raises ConfigurationError, or
    AuthenticationError if the login fails.
    """
    files = kubeconfig or os.environ.get("KUBECONFIG") or str(Path("~/.kube/config").expanduser())
    found = [name for name in files.split(os.pathsep) if Path(name).expanduser().is_file()]
    if not found and (kubeconfig or os.environ.get("KUBECONFIG") or context):
        raise ConfigurationError(f"no kubeconfig at {files!r}", provider=NAME)
    here = client.Configuration()
    with TemporaryDirectory(prefix="sandboxkit-") as folder:
        if found:
            namespace = await _from_files(files, context, here, Path(folder))
        else:
            namespace = _from_pod(here)
        server = str(here.host).rstrip("/")
        try:
            trust = _ssl_context(here) if server.startswith("https") else True
        except (OSError, ValueError) as error:
            raise _unusable(error, "a certificate or key") from error
    return Access(server, namespace, trust, here.tls_server_name, here.proxy, here)


async def _from_files(
    files: str, context: str | None, here: client.Configuration, folder: Path
) -> str:
    try:
        ready = await logged_in(files, context, folder)
        if ready is not None:
            loader = await config.load_kube_config_from_dict(
                ready, context, client_configuration=here
            )
        else:
            loader = await config.load_kube_config(
                config_file=files, context=context, client_configuration=here
            )
    except SandboxError:
        raise
    except _MALFORMED as error:
        raise _unusable(error, repr(files)) from error
    chosen = loader.current_context or {}
    return str(chosen.get("context", {}).get("namespace") or "default")


def _from_pod(here: client.Configuration) -> str:
    try:
        config.load_incluster_config(client_configuration=here)  # type: ignore[no-untyped-call]  # as above
    except (config.ConfigException, OSError) as error:
        raise ConfigurationError(
            "no cluster to use: there is no kubeconfig ($KUBECONFIG, ~/.kube/config), and this is "
            f"no pod with a service account ({error})",
            provider=NAME,
        ) from error
    try:
        return _NAMESPACE_FILE.read_text().strip() or "default"
    except OSError:
        return "default"


def _ssl_context(here: client.Configuration) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=here.ssl_ca_cert)
    # Many clusters' own CAs predate this flag and lack the extensions that it requires.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if here.cert_file:
        context.load_cert_chain(here.cert_file, keyfile=here.key_file)
    if not here.verify_ssl:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _unusable(error: BaseException, what: str) -> SandboxError:
    return ConfigurationError(
        f"{what} cannot be used: {error or type(error).__name__}", provider=NAME
    )
