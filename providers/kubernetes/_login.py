"""Runs a kubeconfig's login program."""

import json
import os
import subprocess
from base64 import b64encode
from typing import Any

import anyio

from sandboxkit.errors import AuthenticationError, ConfigurationError

Fields = dict[str, Any]
"""Fields of a kubeconfig, which are untyped."""

_SECONDS = 60.0
"""Time limit of a login program."""


async def log_in(program: Fields, files: str) -> Fields:
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
