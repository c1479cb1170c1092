"""Translates the docker package's exceptions to sandboxkit's errors, each with its remedy."""

import errno
import json
import resource
from collections.abc import Iterator
from http.client import HTTPException

import requests
from docker.errors import (  # type: ignore[import-untyped]  # the package ships no types
    APIError,
    DockerException,
    ImageNotFound,
    NotFound,
)
from urllib3.exceptions import HTTPError

from sandboxkit.errors import (
    AuthenticationError,
    CapacityError,
    ImageNotFoundError,
    ProviderUnavailableError,
    SandboxError,
    SandboxNotFoundError,
    SandboxStartError,
)

__all__ = ["HANDLED", "connection_error", "explanation", "is_status", "refusal", "translate"]

_ODD = (LookupError, TypeError, ValueError, AttributeError)
"""Exceptions from reading an answer of an unexpected form."""
HANDLED: tuple[type[Exception], ...] = (
    DockerException,
    requests.RequestException,
    OSError,
    HTTPError,
    HTTPException,
    *_ODD,
)
"""Exceptions that a control call may raise; `translate` accepts all of them."""

# Phrases in errors of daemons and runtimes that mean a lack of resources, not a bad request.
_CAPACITY = (
    "no space left on device",
    "cannot allocate memory",
    "resource temporarily unavailable",
    "too many open files",
    "failed to allocate",
    "exhausted",
)


_SHOWN = 500
"""Maximum characters of an unexpected answer in a message."""


def is_status(error: BaseException, *statuses: int) -> bool:
    """Whether the daemon answered with one of these HTTP statuses."""
    return isinstance(error, APIError) and error.status_code in statuses


class _UnexplainedError(APIError):  # type: ignore[misc]  # the package ships no types
    """A refusal without the daemon's explanation, perhaps from a proxy in front of it."""


def refusal(error: Exception) -> Exception:
    """Return the error, or the HTTP refusal whose explanation the docker package failed to read."""
    read = isinstance(error, APIError)
    for cause in _chain(error):
        if isinstance(cause, requests.HTTPError) and cause.response is not None:
            said, explained = _message(cause.response)
            if explained and read:
                return error
            unexplained: Exception = _UnexplainedError(
                str(cause), response=cause.response, explanation=said
            )
            return unexplained
    return error


def _message(response: requests.Response) -> tuple[str, bool]:
    """Return the body's message, and whether the body has the daemon's own JSON form."""
    try:
        text = response.text
    except (requests.RequestException, RuntimeError):
        return "the answer broke off", False
    try:
        said = json.loads(text)
    except ValueError:
        said = None
    if isinstance(said, dict) and isinstance(said.get("message"), str):
        return said["message"], True
    return text.strip()[:_SHOWN] or "no explanation", False


def explanation(error: BaseException) -> str:
    """Return the daemon's message without the docker package's framing."""
    said = getattr(error, "explanation", None)
    if isinstance(said, bytes):
        said = said.decode(errors="replace")
    return str(said or error).strip()


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield the error and all its causes; urllib3 and requests also keep causes in `args`."""
    seen: set[int] = set()
    todo: list[object] = [error]
    while todo:
        item = todo.pop(0)
        if not isinstance(item, BaseException) or id(item) in seen:
            continue
        seen.add(id(item))
        yield item
        todo += [item.__cause__, item.__context__, getattr(item, "reason", None), *item.args]


def connection_error(error: BaseException, url: str) -> SandboxError:
    """Return an error that says why the daemon could not be reached, and the remedy."""
    causes = list(_chain(error))
    if any(isinstance(cause, OSError) and cause.errno == errno.EMFILE for cause in causes):
        most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return ProviderUnavailableError(
            f"this process may have no more than {most} files open, and so has no connection to the "
            "Docker daemon: raise the limit (`ulimit -n`), or run fewer sandboxes at a time",
            provider="docker",
        )
    if any(isinstance(cause, PermissionError) for cause in causes):
        return AuthenticationError(
            f"permission denied on the Docker daemon at {url}: add this user to the `docker` "
            "group (`sudo usermod -aG docker $USER`, then log in again), or set DOCKER_HOST to a "
            "rootless daemon's socket",
            provider="docker",
        )
    if any(isinstance(cause, TimeoutError | requests.Timeout) for cause in causes):
        return ProviderUnavailableError(
            f"the Docker daemon at {url} does not answer in time: it hangs or is overloaded; "
            "see its log, or restart it (`sudo systemctl restart docker`)",
            provider="docker",
        )
    return ProviderUnavailableError(
        f"no Docker daemon at {url} ({causes[-1] or type(error).__name__}): start it "
        "(`sudo systemctl start docker`), or point DOCKER_HOST or `docker context` to one",
        provider="docker",
    )


def translate(
    error: BaseException, *, url: str, what: str, sandbox_id: str | None = None
) -> SandboxError:
    """Return the sandboxkit error for a failed control call; `what` names the call in its message."""
    if not isinstance(error, APIError):
        if isinstance(error, _ODD) and not isinstance(error, OSError | requests.Timeout):
            return ProviderUnavailableError(
                f"Docker cannot {what}: the answer of {url} cannot be understood "
                f"({type(error).__name__}: {error}): try again; if it stays so, something else "
                "than a Docker daemon answers there, see DOCKER_HOST or `docker context`",
                provider="docker",
                sandbox_id=sandbox_id,
            )
        return connection_error(error, url)
    said = explanation(error)
    message = f"Docker cannot {what}: {said} (HTTP {error.status_code} of {url})"
    lowered = said.lower()
    if isinstance(error, ImageNotFound):
        return ImageNotFoundError(message, provider="docker", sandbox_id=sandbox_id)
    if isinstance(error, NotFound) and "no such container" in lowered:
        return SandboxNotFoundError(
            f"no sandbox {sandbox_id!r}; it may have ended",
            provider="docker",
            sandbox_id=sandbox_id,
        )
    if error.status_code in (401, 403):
        return AuthenticationError(message, provider="docker", sandbox_id=sandbox_id)
    unexplained = isinstance(error, _UnexplainedError) and (error.status_code or 0) >= 500
    if unexplained or error.status_code in (429, 502, 503, 504):
        return ProviderUnavailableError(message, provider="docker", sandbox_id=sandbox_id)
    if any(words in lowered for words in _CAPACITY):
        return CapacityError(message, provider="docker", sandbox_id=sandbox_id)
    if what.startswith(("create", "start")) or isinstance(error, NotFound):
        return SandboxStartError(message, provider="docker", sandbox_id=sandbox_id)
    return ProviderUnavailableError(message, provider="docker", sandbox_id=sandbox_id)
