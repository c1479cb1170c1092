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
from sandboxkit.providers._error_rules import ErrorRule, Failure, apply_rules

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

_SHOWN = 500
"""Maximum characters of an unexpected answer in a message."""


def is_status(error: BaseException, *statuses: int) -> bool:
    """Whether the daemon answered with one of these HTTP statuses."""
    return isinstance(error, APIError) and error.status_code in statuses


class _UnexplainedError(APIError):  # type: ignore[misc]  # the package ships no types
    """A refusal without the daemon's explanation, perhaps from a proxy in front of it."""


_RULES = (
    ErrorRule((ImageNotFound,), ImageNotFoundError),
    ErrorRule((NotFound,), SandboxNotFoundError, pattern="no such container"),
    ErrorRule((401, 403), AuthenticationError),
    ErrorRule(range(500, 600), ProviderUnavailableError, needed={_UnexplainedError}),
    ErrorRule((429, 502, 503, 504), ProviderUnavailableError),
    ErrorRule(
        (),
        CapacityError,
        pattern="no space left on device|cannot allocate memory|resource temporarily unavailable"
        "|too many open files|failed to allocate|exhausted",
    ),
    ErrorRule(("create", "start", NotFound), SandboxStartError),
    ErrorRule((), ProviderUnavailableError),
)
"""The errors for the daemon's refusals. "create" and "start" are what a call does."""


def refusal(error: Exception) -> Exception:
    """Return the error, or the HTTP refusal whose explanation the docker package failed to read."""
    read = isinstance(error, APIError)
    for cause in _chain(error):
        if isinstance(cause, requests.HTTPError) and cause.response is not None:
            text, explained = _message(cause.response)
            if explained and read:
                return error
            unexplained: Exception = _UnexplainedError(
                str(cause), response=cause.response, explanation=text
            )
            return unexplained
    return error


def _message(response: requests.Response) -> tuple[str, bool]:
    """Return the body's message, and whether the body has the daemon's own JSON form."""
    try:
        text = response.text
    except (requests.RequestException, RuntimeError):
        return "the answer was cut off", False
    try:
        body = json.loads(text)
    except ValueError:
        body = None
    if isinstance(body, dict) and isinstance(body.get("message"), str):
        return body["message"], True
    return text.strip()[:_SHOWN] or "no explanation", False


def explanation(error: BaseException) -> str:
    """Return the daemon's message without the docker package's framing."""
    text = getattr(error, "explanation", None)
    if isinstance(text, bytes):
        text = text.decode(errors="replace")
    return str(text or error).strip()


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
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    rules = (
        ErrorRule(
            (errno.EMFILE,),
            ProviderUnavailableError,
            f"this process has reached its limit of {most} open files and cannot connect to the Docker "
            "daemon: raise the limit (`ulimit -n`), or run fewer sandboxes at a time",
        ),
        ErrorRule(
            (PermissionError,),
            AuthenticationError,
            f"permission denied on the Docker daemon at {url}: add this user to the `docker` "
            "group (`sudo usermod -aG docker $USER`, then log in again), or set DOCKER_HOST to a "
            "rootless daemon's socket",
        ),
        ErrorRule(
            (TimeoutError, requests.Timeout),
            ProviderUnavailableError,
            f"the Docker daemon at {url} did not answer in time: it hangs or is overloaded; "
            "see its log, or restart it (`sudo systemctl restart docker`)",
        ),
        ErrorRule(
            (),
            ProviderUnavailableError,
            f"no Docker daemon at {url} ({causes[-1] or type(error).__name__}): start it "
            "(`sudo systemctl start docker`), or point DOCKER_HOST or `docker context` to one",
        ),
    )
    codes = {code for cause in causes for code in (*type(cause).__mro__, _errno(cause))}
    return apply_rules(Failure("", "", codes), rules)


def _errno(error: BaseException) -> int | None:
    return error.errno if isinstance(error, OSError) else None


def translate(
    error: BaseException, *, url: str, what: str, sandbox_id: str | None = None
) -> SandboxError:
    """Return the sandboxkit error for a failed control call; `what` names the call in its message."""
    if isinstance(error, APIError):
        message = explanation(error)
        text = f"Docker cannot {what}: {message} (HTTP {error.status_code} of {url})"
        codes = {*type(error).__mro__, error.status_code, what.partition(" ")[0]}
        return apply_rules(Failure(text, message, codes, sandbox_id), _RULES)
    if isinstance(error, OSError | requests.Timeout) or not isinstance(error, _ODD):
        return connection_error(error, url)
    return ProviderUnavailableError(
        f"Docker cannot {what}: the answer of {url} is not valid ({type(error).__name__}: {error}): "
        "try again; if this repeats, the server there may not be a Docker daemon: see DOCKER_HOST "
        "or `docker context`"
    )
