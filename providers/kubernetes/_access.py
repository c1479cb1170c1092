"""Where the cluster is and who we are there: a kubeconfig's context, or the pod that this runs in."""

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
"""What the package raises for a file that has not the form it should have."""


@dataclass(frozen=True, slots=True)
class Access:
    """What a connection needs."""

    server: str
    namespace: str
    ssl: ssl.SSLContext | bool
    server_name: str | None
    """What the certificate must say, if not the server's address."""
    proxy: str | None
    configuration: client.Configuration

    async def headers(self) -> dict[str, str]:
        """The headers that say who we are; a service account's token is read anew each minute."""
        try:
            token = await self.configuration.get_api_key_with_prefix("BearerToken")
        except (config.ConfigException, OSError) as error:
            raise _unusable(error, "the service account's token") from error
        return {"Authorization": str(token)} if token else {}


async def read_access(kubeconfig: str | None, context: str | None) -> Access:
    """Read it, and run the login program if the context has one.

    `kubeconfig` may be several files, as in $KUBECONFIG. None is that variable, ~/.kube/config, or
    else the service account. Raises ConfigurationError, and AuthenticationError for a login that
    fails.
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
    # Clusters are older than this flag: their own authorities lack the extensions it wants.
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
