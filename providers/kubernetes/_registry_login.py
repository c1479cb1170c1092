"""Logs in to an OCI registry with the credentials that `docker login` has stored."""

import base64
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import aiohttp
import anyio.to_thread

from sandboxkit.errors import AuthenticationError, ConfigurationError, ProviderUnavailableError

_PATIENCE = 30.0
"""How long (s) a credential program may take."""
_PARAMETER = re.compile(r'(\w+)="([^"]*)"')


async def authorization(session: aiohttp.ClientSession, host: str, challenge: str) -> str:
    """Return the Authorization header that fulfils a WWW-Authenticate header.

    Raises AuthenticationError if there are no credentials, or the registry's token service refuses them.
    """
    stored = await _credentials(host)
    basic = f"Basic {base64.b64encode(stored.encode()).decode()}" if stored else ""
    scheme, _, rest = challenge.partition(" ")
    if scheme.lower() != "bearer":
        if not basic:
            raise _refused(host, f"{_config()} has no credentials for it")
        return basic
    asked = dict(_PARAMETER.findall(rest))
    realm = asked.pop("realm", "")
    params = {key: asked[key] for key in ("service", "scope") if key in asked}
    headers = {"Authorization": basic} if basic else {}
    async with session.get(realm, params=params, headers=headers) as answer:
        text = await answer.text(errors="replace")
    if answer.status == 429 or answer.status >= 500:
        raise ProviderUnavailableError(
            f"{realm}, where the registry {host} wants a login, answers {text[:200]!r} (HTTP {answer.status})"
        )
    try:
        given = json.loads(text)
        return f"Bearer {given.get('token') or given['access_token']}"
    except (ValueError, LookupError, AttributeError) as error:
        raise _refused(host, f"{realm} answers {text[:200]!r} (HTTP {answer.status})") from error


def _config() -> Path:
    return Path(os.environ.get("DOCKER_CONFIG") or Path.home() / ".docker") / "config.json"


async def _credentials(host: str) -> str:
    """Return USER:PASSWORD from docker's configuration or its credential program; "" if it has none."""
    path = _config()
    try:
        config = json.loads(path.read_bytes())
        helper = config.get("credHelpers", {}).get(host) or config.get("credsStore")
        if helper and (found := await _from_program(f"docker-credential-{helper}", host)):
            return found
        stored = config.get("auths", {})
        entry = stored.get(host) or stored.get(f"https://{host}") or {}
        return base64.b64decode(entry.get("auth", "")).decode()
    except FileNotFoundError:
        return ""
    except (OSError, ValueError, LookupError, AttributeError, subprocess.SubprocessError) as error:
        raise ConfigurationError(
            f"the login for the registry {host} cannot be read from {path}: {error!r}; run: docker login {host}"
        ) from error


async def _from_program(program: str, host: str) -> str | None:
    """Return USER:PASSWORD from a credential program of docker's; None if it has none for the registry."""
    if shutil.which(program) is None:
        raise ValueError(f"it names {program}, which is not installed")

    def run() -> subprocess.CompletedProcess[bytes]:
        argv = [program, "get"]
        return subprocess.run(argv, input=host.encode(), capture_output=True, timeout=_PATIENCE)

    done = await anyio.to_thread.run_sync(run, abandon_on_cancel=True)
    if done.returncode != 0:
        return None
    found = json.loads(done.stdout)
    return f"{found['Username']}:{found['Secret']}"


def _refused(host: str, why: str) -> AuthenticationError:
    return AuthenticationError(
        f"the registry {host} wants a login: {why}; run: docker login {host}"
    )
