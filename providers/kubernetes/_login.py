"""Prepares a kubeconfig: runs its login program and writes its inline keys to files."""

import base64
import json
import subprocess
from pathlib import Path
from typing import Any

import anyio
from kubernetes_asyncio.config import ConfigException
from kubernetes_asyncio.config.exec_provider import ExecProvider
from kubernetes_asyncio.config.kube_config import ConfigNode, KubeConfigMerger

from sandboxkit.errors import AuthenticationError, ConfigurationError
from sandboxkit.providers.kubernetes._errors import NAME

__all__ = ["logged_in"]

_SECONDS = 60.0
"""Time limit of a login program."""


async def logged_in(files: str, context: str | None, folder: Path) -> ConfigNode | None:
    """Return the kubeconfig with the login program's credentials, and with its keys in `folder`.

    kubernetes_asyncio would do both, but after a cancellation it leaves the program running, and it
    leaves the keys on disk. Returns None for an `auth-provider` user, whose tokens it refreshes.
    Raises AuthenticationError if the program fails, and other errors for a malformed kubeconfig.
    """
    # Any: a kubeconfig's contents and the package's nodes are untyped.
    config: Any = KubeConfigMerger(files).config
    chosen: Any = config["contexts"].get_with_name(context or config["current-context"])
    cluster: Any = config["clusters"].get_with_name(chosen["context"]["cluster"])["cluster"]
    keys = [(cluster, "certificate-authority")]
    name = chosen["context"].safe_get("user")
    entry: Any = config["users"].get_with_name(name, safe=True) if name else None
    if entry is not None and entry.safe_get("user"):
        user: Any = entry["user"]
        if user.safe_get("auth-provider"):
            return None
        if user.safe_get("exec"):
            user.value.update(_in_place(await _run(ExecProvider(user["exec"]), files)))
            del user.value["exec"]
        keys += [(user, "client-certificate"), (user, "client-key")]
    for number, (node, key) in enumerate(keys):
        data = node.value.pop(f"{key}-data", None)
        if data:
            path = folder / str(number)
            path.write_bytes(base64.b64decode(data))
            node.value[key] = str(path)
    assert isinstance(config, ConfigNode)
    return config


def _in_place(said: dict[str, Any]) -> dict[str, str]:
    """Convert a login program's credentials to the fields of a kubeconfig user."""
    if "token" in said:
        return {"token": str(said["token"])}
    keys = {"client-certificate": "clientCertificateData", "client-key": "clientKeyData"}
    return {
        f"{ours}-data": base64.b64encode(str(said[theirs]).encode()).decode()
        for ours, theirs in keys.items()
    }


async def _run(program: ExecProvider, files: str) -> dict[str, Any]:
    asked = {
        "apiVersion": program.api_version,
        "kind": "ExecCredential",
        "spec": {"interactive": False},
    }
    environment = program.env | {"KUBERNETES_EXEC_INFO": json.dumps(asked)}
    what = f"the login program {program.args[0]!r} of {files!r}"
    try:
        with anyio.fail_after(_SECONDS):
            done = await anyio.run_process(
                program.args, env=environment, stdin=subprocess.DEVNULL, check=False
            )
    except TimeoutError as error:
        raise AuthenticationError(f"{what} took more than {_SECONDS:g} s", provider=NAME) from error
    except OSError as error:
        raise ConfigurationError(f"{what} cannot be run: {error}", provider=NAME) from error
    if done.returncode:
        words = done.stderr.decode(errors="replace").strip()[-500:]
        raise AuthenticationError(f"{what} failed ({done.returncode}): {words}", provider=NAME)
    try:
        said: dict[str, Any] = json.loads(done.stdout)["status"]
        if "token" not in said and not {"clientCertificateData", "clientKeyData"} <= said.keys():
            raise KeyError("token")
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise ConfigException(f"{what} says no ExecCredential with a token") from error
    return said
