"""Reads the cluster's address and our credentials from a kubeconfig or this pod's service account."""

import json
import os
import ssl
import subprocess
from base64 import b64decode, b64encode
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import anyio
import yaml  # type: ignore[import-untyped]  # no stubs

from sandboxkit.errors import AuthenticationError, ConfigurationError, SandboxError

Fields = dict[str, Any]
"""Fields of a kubeconfig, which are untyped."""

_SECONDS = 60.0
"""Time limit of a login program."""
_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_FILES = ("certificate-authority", "client-certificate", "client-key", "tokenFile")
"""Fields with paths, which are relative to the folder of the kubeconfig."""
_MALFORMED = (yaml.YAMLError, LookupError, TypeError, ValueError, AttributeError, OSError)
"""The exceptions from reading a malformed kubeconfig."""


@dataclass(frozen=True, slots=True)
class Access:
    """The address, credentials and TLS settings of a connection to the API server."""

    server: str
    namespace: str
    ssl: ssl.SSLContext | bool
    server_name: str | None
    """The host name expected in the certificate; None for that of the server's address."""
    proxy: str | None
    user: Fields = field(repr=False)
    """The user's fields in the kubeconfig."""

    def headers(self) -> dict[str, str]:
        """Return the authorization headers. A token's file is read each time, because it is renewed.

        Raises ConfigurationError if the credentials are malformed or the file cannot be read.
        """
        user = self.user
        try:
            stored = (user.get("auth-provider") or {}).get("config") or {}
            token = stored.get("id-token") or stored.get("access-token") or user.get("token")
            if not token and user.get("tokenFile"):
                token = Path(user["tokenFile"]).read_text().strip()
        except (AttributeError, OSError, ValueError) as error:
            raise _unusable(error, "the user's token") from error
        if token:
            return {"Authorization": f"Bearer {token}"}
        if "username" in user and "password" in user:
            words = f"{user['username']}:{user['password']}".encode()
            return {"Authorization": f"Basic {b64encode(words).decode()}"}
        return {}


async def read_access(kubeconfig: str | None, context: str | None) -> Access:
    """Read the configuration, and run the login program if the context has one.

    `kubeconfig` may list several files, as $KUBECONFIG does. None means $KUBECONFIG, then
    ~/.kube/config, then the pod's service account. Raises ConfigurationError, or
    AuthenticationError if the login fails.
    """
    files = kubeconfig or os.environ.get("KUBECONFIG") or "~/.kube/config"
    paths = [Path(name).expanduser().absolute() for name in files.split(os.pathsep)]
    found = [path for path in paths if path.is_file()]
    if not found and (kubeconfig or os.environ.get("KUBECONFIG") or context):
        raise ConfigurationError(f"no kubeconfig at {files!r}: set KUBECONFIG to one")
    try:
        cluster, user, namespace = _from_files(found, context) if found else _from_pod()
        if user.get("exec"):
            user = user | await _log_in(user["exec"], files)
        server = str(cluster["server"]).rstrip("/")
    except SandboxError:
        raise
    except _MALFORMED as error:
        raise _unusable(error, repr(files)) from error
    try:
        trust = _ssl_context(cluster, user) if server.startswith("https") else True
    except (OSError, TypeError, ValueError) as error:
        raise _unusable(error, "a certificate or key") from error
    name, proxy = cluster.get("tls-server-name"), cluster.get("proxy-url")
    return Access(server, namespace or "default", trust, name, proxy, user)


def _from_files(files: Sequence[Path], context: str | None) -> tuple[Fields, Fields, str]:
    """Return the context's cluster, user and namespace; of equal names the first one counts."""
    named: dict[str, dict[str, Fields]] = {"contexts": {}, "clusters": {}, "users": {}}
    for file in files:
        config = yaml.safe_load(file.read_text()) or {}
        context = context or config.get("current-context")
        for kind, entries in named.items():
            for entry in config.get(kind) or ():
                fields = entry.get(kind[:-1]) or {}
                paths = {key: str(file.parent / fields[key]) for key in _FILES if fields.get(key)}
                entries.setdefault(entry["name"], fields | paths)

    def get(kind: str, name: str | None) -> Fields:
        if name not in named[kind]:
            raise LookupError(f"{name!r} is not among its {kind}")
        return named[kind][name]

    chosen = get("contexts", context)
    user = named["users"].get(chosen.get("user") or "", {})
    return get("clusters", chosen["cluster"]), user, chosen.get("namespace", "")


def _from_pod() -> tuple[Fields, Fields, str]:
    """Return the cluster, user and namespace of this pod's service account."""
    host, port = (os.environ.get(f"KUBERNETES_SERVICE_{part}") for part in ("HOST", "PORT"))
    token, authority, namespace = (_ACCOUNT / name for name in ("token", "ca.crt", "namespace"))
    if not (host and port and token.is_file() and authority.is_file()):
        raise ConfigurationError(
            "no cluster to use: there is no kubeconfig ($KUBECONFIG, ~/.kube/config), and this process is "
            "not in a pod with a service account"
        )
    server = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    cluster = {"server": server, "certificate-authority": str(authority)}
    where = namespace.read_text().strip() if namespace.is_file() else ""
    return cluster, {"tokenFile": str(token)}, where


def _ssl_context(cluster: Fields, user: Fields) -> ssl.SSLContext:
    with TemporaryDirectory(prefix="sandboxkit-") as folder:

        def path(fields: Fields, name: str) -> str | None:
            data, file = fields.get(f"{name}-data"), fields.get(name)
            if not data:
                if file:
                    os.stat(file)  # its error names the file; that of ssl does not
                return file
            Path(folder, name).write_bytes(b64decode(data))
            return str(Path(folder, name))

        context = ssl.create_default_context(cafile=path(cluster, "certificate-authority"))
        # Many clusters' own CAs predate this flag and lack the extensions that it requires.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        if certificate := path(user, "client-certificate"):
            context.load_cert_chain(certificate, keyfile=path(user, "client-key"))
    if cluster.get("insecure-skip-tls-verify"):
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _unusable(error: BaseException, what: str) -> SandboxError:
    return ConfigurationError(f"{what} cannot be used: {error or type(error).__name__}")


async def _log_in(program: Fields, files: str) -> Fields:
    """Run the login program in a kubeconfig's `exec`, and return the fields of a user that it prints.

    Raises AuthenticationError if the program fails, and ConfigurationError if it cannot be run or
    prints no credentials. A malformed `exec` raises LookupError or TypeError.
    """
    version = program["apiVersion"]
    asked = {"apiVersion": version, "kind": "ExecCredential", "spec": {"interactive": False}}
    argv = [str(word) for word in (program["command"], *(program.get("args") or ()))]
    given = {each["name"]: str(each["value"]) for each in program.get("env") or ()}
    environment = os.environ | given | {"KUBERNETES_EXEC_INFO": json.dumps(asked)}
    what = f"the login program {argv[0]!r} of {files!r}"
    try:
        with anyio.fail_after(_SECONDS):
            done = await anyio.run_process(
                argv, env=environment, stdin=subprocess.DEVNULL, check=False
            )
    except TimeoutError as error:
        raise AuthenticationError(f"{what} took more than {_SECONDS:g} s") from error
    except OSError as error:
        raise ConfigurationError(f"{what} cannot be run: {error}") from error
    if done.returncode:
        words = done.stderr.decode(errors="replace").strip()[-500:]
        raise AuthenticationError(f"{what} failed ({done.returncode}): {words}")
    try:
        credentials = json.loads(done.stdout)["status"]
        if "token" in credentials:
            return {"token": str(credentials["token"])}
        return {
            "client-certificate-data": b64encode(credentials["clientCertificateData"].encode()),
            "client-key-data": b64encode(credentials["clientKeyData"].encode()),
        }
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise ConfigurationError(
            f"{what} printed no ExecCredential with a token or certificate"
        ) from error
