"""Checks of one sandbox against a live backend: a selection of the conformance checks, and measurements.

`sandboxkit doctor --live` prints these checks. They need no pytest.
"""

import contextlib
import inspect
import secrets
import statistics
import tempfile
import time
import traceback
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from pathlib import Path

from sandboxkit import ConfigurationError, ProcessResult, Sandbox, SandboxError, Session, _tags
from sandboxkit.options import SpecOptions
from sandboxkit.provider import Provider
from sandboxkit.testing.conformance import ProviderConformance
from sandboxkit.testing.conformance._base import DEADLINE, mine, until
from sandboxkit.testing.conformance._pytest import pytest
from sandboxkit.testing.conformance.kill import _TREES

__all__ = ["CheckResult", "checks"]

_LIFETIME = 900.0
_START_SECONDS = 600.0
_TRIES = 30

_PLACES = ("1.1.1.1:443", "8.8.8.8:53", "169.254.169.254:80")
_INTERNET = set(_PLACES[:2])
_NAME = "example.com"
_UNAVAILABLE = 77
_PYTHON = """\
import socket, sys
for place in sys.argv[2:]:
    host, port = place.split(':')
    try:
        socket.create_connection((host, int(port)), 5).close()
        print(place)
    except OSError:
        pass
try:
    socket.getaddrinfo(sys.argv[1], 80)
    print(sys.argv[1])
except OSError:
    pass
"""
_CONNECT = f"""\
if command -v python3 > /dev/null; then exec timeout 45 python3 -c "$PROBE" "$@"; fi
command -v bash > /dev/null || exit {_UNAVAILABLE}
getent hosts "$1" > /dev/null 2>&1 && echo "$1"
shift
for place; do
    timeout 5 bash -c "exec 3<> /dev/tcp/${{place%:*}}/${{place#*:}}" 2> /dev/null && echo "$place"
done
:
"""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of one check."""

    check: str
    expected: str
    seen: str
    held: bool | None
    """Whether the expectation held. None: it cannot be checked here, for the reason in `seen`."""
    seconds: float


@dataclass(frozen=True, slots=True)
class _Row:
    name: str
    expected: str
    checks: tuple[str, ...]
    """The names of conformance checks, or of measurements of `_Live`."""
    needs: str = ""
    """A program that the sandbox must have."""


ROWS = (
    _Row("start", "a sandbox in which a command runs", ("start",)),
    _Row("latency", "`true` exits with 0, each time", ("latency",)),
    _Row(
        "bytes",
        "every byte value through stdin and stdout, exact",
        ("test_binary_stdin_is_exact", "test_big_stdin_is_exact"),
    ),
    _Row(
        "statuses",
        "every exit status unchanged, and none for a command that was not started",
        (
            "test_the_exit_status_is_exact",
            "test_a_program_may_exit_with_what_a_shell_says",
            "test_a_missing_program_has_no_status",
            "test_nothing_starts_in_a_cwd_that_does_not_exist",
        ),
    ),
    _Row(
        "signals", "128 + n, and a signal as the ending", ("test_a_signal_from_within_is_a_signal",)
    ),
    _Row(
        "stderr",
        "apart from stdout, both exact",
        ("test_stdout_and_stderr_are_apart", "test_the_output_of_a_short_command_is_complete"),
    ),
    _Row(
        "much data",
        "100,000 lines of output and a file of 20 MB, exact",
        ("test_order_is_kept_within_a_stream", "test_20_mb_make_the_round_trip"),
    ),
    _Row("at once", "8 commands run at the same time", ("test_commands_run_at_the_same_time",)),
    _Row(
        "user",
        "the requested user, the same for commands and files",
        ("test_commands_have_the_user_of_the_spec", "test_files_and_commands_have_the_same_user"),
    ),
    _Row(
        "workdir",
        "commands start there, or in their cwd",
        ("test_commands_start_where_workdir_says", "test_cwd_is_honoured"),
    ),
    _Row(
        "variables",
        "env reaches commands, and ends with them",
        ("test_env_reaches_the_command", "test_env_ends_with_the_command"),
    ),
    _Row(
        "terminal",
        "its size, and its new size",
        ("test_pty_is_a_terminal_of_the_size_asked_for", "test_pty_can_be_resized"),
        needs="stty",
    ),
    _Row(
        "files",
        "up and down, exact, with modes",
        (
            "test_binary_content_is_exact",
            "test_a_mode_is_honoured",
            "test_reading_a_missing_file",
            "test_one_file_goes_up_and_comes_down",
        ),
    ),
    _Row("network", "as asked", ("network",)),
    _Row(
        "timeout",
        "CommandTimeoutError with the output so far, the whole tree dead",
        ("test_a_timeout_carries_the_output_so_far", "test_timeout_kills_the_whole_tree"),
        needs="setsid",
    ),
    _Row(
        "kill and cancel",
        "the whole tree dead, and nothing else",
        (
            "test_kill_kills_the_whole_tree",
            "test_cancel_kills_the_whole_tree",
            "test_a_kill_spares_the_neighbours",
        ),
        needs="setsid",
    ),
    _Row(
        "silence",
        "a command that is silent for long is unharmed",
        ("test_a_command_that_is_silent_for_long_is_unharmed",),
    ),
    _Row(
        "second client",
        "another process reaches the same sandbox by its id",
        ("test_another_process_uses_it",),
    ),
    _Row(
        "lifetime",
        "the sandbox expires at the requested time",
        ("test_the_end_of_the_lifetime_is_listed",),
    ),
    _Row("renew", "it expires later", ("test_renew_moves_the_end_that_is_listed",)),
    _Row(
        "list",
        "its tag finds it, running, and nothing else",
        ("test_a_listing_by_tag_shows_no_others", "test_a_listing_describes_what_it_lists"),
    ),
    _Row(
        "secrets",
        "reach commands of a second sandbox; shown in no listing, argument or process 1",
        ("test_secrets_are_variables_that_no_listing_shows",),
        needs="grep",
    ),
    _Row(
        "delete",
        "the sandbox is gone, and so is its command",
        ("test_a_command_cannot_outlive_stop",),
    ),
    _Row("nothing left", "nothing in the listing", ("nothing_left",)),
)
"""In this order: the last two end the sandbox."""


def checks(
    provider: str | Provider | None, spec: SpecOptions, *, silence: float = 5.0
) -> Generator[CheckResult, None, None]:
    """Create a sandbox from `spec`, check it and delete it; yield each result as it is known.

    Its sandboxes are always deleted; close the generator if you stop early. `silence` is how long (s) the
    command of the silence check prints nothing. Raises the errors of creation and deletion; every other
    error becomes a result.
    """
    if not __debug__:
        raise ConfigurationError("the checks are assertions, which Python leaves out with -O")
    lifetime = spec.get("lifetime") or _LIFETIME + 2 * silence
    tags = {**_tags.parse(spec.get("tags")), "sandboxkit-live": secrets.token_hex(4)}
    options: SpecOptions = {**spec, "lifetime": lifetime, "tags": tags}
    with (
        Session(provider, **options) as session,
        tempfile.TemporaryDirectory() as folder,
    ):
        began = time.monotonic()
        sandbox = session.sandbox().start().result(_START_SECONDS)
        live = _Live(session, sandbox, silence, time.monotonic() - began, Path(folder))
        for row in ROWS:
            yield live.result(row)


class _Live(ProviderConformance):
    """The suite for one sandbox: the values of its fixtures, and measurements."""

    def __init__(
        self, session: Session, sandbox: Sandbox, silence: float, seconds: float, tmp_path: Path
    ) -> None:
        kind = type(session._provider)
        self.spec = f"{kind.__module__}:{kind.__qualname__}"  # type: ignore[misc]  # of one object
        self.silent_seconds = silence  # type: ignore[misc]
        self._session, self._sandbox, self._start_seconds = session, sandbox, seconds
        self._values = {
            "session": session,
            "provider": session._provider,
            "sandbox": sandbox,
            "shared": sandbox,
            "tree": _TREES["double_fork"],
            "tmp_path": tmp_path,
        }

    def result(self, row: _Row) -> CheckResult:
        """Make the checks of a row up to the first that does not hold."""
        began = time.monotonic()
        held: bool | None = True
        seen: list[str] = []
        try:
            if row.needs and self._run(f"command -v {row.needs}").returncode:
                pytest.skip(f"the image has no {row.needs}")
            for name in row.checks:
                seen.append(self._check(name) or "")
        except pytest.skip.Exception as skipped:
            seen, held = [str(skipped)], None
        except (AssertionError, pytest.fail.Exception) as error:
            seen, held = [str(error) or _line(error)], False
        except (SandboxError, OSError) as error:  # a TimeoutError is an OSError
            seen, held = [f"{type(error).__name__}: {error}"], False
        text = ", ".join(filter(None, seen)) or "as expected"
        return CheckResult(row.name, row.expected, text, held, round(time.monotonic() - began, 3))

    def _check(self, name: str) -> str | None:
        method: Callable[..., str | None] = getattr(self, name)
        names = inspect.signature(method).parameters
        values: Mapping[str, object] = self._values
        if "folder" in names:
            folder = f"{self._sandbox.workdir().result(DEADLINE)}/{secrets.token_hex(8)}"
            self._sandbox.exec(["mkdir", folder], check=True).result(DEADLINE)
            values = {**values, "folder": folder}
        return method(**{each: values[each] for each in names})

    def _run(self, script: str, *args: str, env: Mapping[str, str] | None = None) -> ProcessResult:
        argv = ["sh", "-c", script, "sh", *args]
        return self._sandbox.exec(argv, env=env, timeout=60).result(2 * DEADLINE + 60)

    def start(self) -> str:
        """Measure the start and the first command."""
        began = time.monotonic()
        assert self._run("echo first").stdout == "first\n"
        first = 1000 * (time.monotonic() - began)
        return f"started in {self._start_seconds:.2f} s, first command {first:.1f} ms later"

    def latency(self) -> str:
        """Measure a command that does nothing."""
        times: list[float] = []
        for _ in range(_TRIES):
            began = time.perf_counter()
            result = self._sandbox.exec(["true"], timeout=60).result(DEADLINE + 60)
            times.append(1000 * (time.perf_counter() - began))
            assert result.returncode == 0
        p95 = statistics.quantiles(times, n=20)[-1]
        return f"p50 {statistics.median(times):.1f} ms, p95 {p95:.1f} ms, of {_TRIES}"

    def network(self) -> str:
        """Try what can be reached."""
        asked = self._sandbox.spec.network
        result = self._run(_CONNECT, _NAME, *_PLACES, env={"PROBE": _PYTHON})
        if result.returncode == _UNAVAILABLE:
            pytest.skip("the image has neither python3 nor bash to try it with")
        assert result.returncode == 0, f"status {result.returncode}: {result.stderr}"
        reached = result.stdout.split()
        seen = f"network={asked!r}: reached {', '.join(reached) or 'nothing'}"
        if not (not reached if asked == "none" else _INTERNET.intersection(reached)):
            pytest.fail(seen)
        return seen

    def nothing_left(self) -> None:
        """Wait until nothing of the session is listed."""
        with contextlib.suppress(SandboxError):
            for info in mine(self._session):
                if info.id != self._sandbox.id:  # what a check made beside it
                    self._session.from_id(info.id).result(DEADLINE).stop().result(DEADLINE)
        until(lambda: not mine(self._session), "nothing is listed", 2 * DEADLINE)


def _line(error: BaseException) -> str:
    """The line of the check that did not hold."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{frame.line} ({Path(frame.filename).name}:{frame.lineno})"
