"""Checks of commands: latency, exact streams, statuses, signals, large output, concurrency."""

import hashlib
import os
import statistics
import time

from sandboxkit import CommandStartError, Ending, wait
from sandboxkit.testing.live._subject import (
    Check,
    DifferentError,
    LiveSubject,
    bounded,
    expect,
)

_TRIES = 30
_MEGABYTE = 1 << 20
_MUCH = 20_000_000
_MANY = 8
_SIGNALS = {"TERM": 15, "KILL": 9, "SEGV": 11}
_STATUSES = (0, 1, 2, 77, 126, 127, 128, 137, 255)

_LINES = "i=0; while [ $i -lt 500 ]; do echo out$i; echo err$i >&2; i=$((i + 1)); done"
_MEET = """\
mkdir -p meeting && : > "meeting/$1"
tries=0
while [ "$(ls meeting | wc -l)" -lt "$2" ] && [ $tries -lt 300 ]; do
    tries=$((tries + 1)); sleep 0.1
done
ls meeting | wc -l
"""


def _start(subject: LiveSubject) -> str:
    began = time.monotonic()
    result = subject.run("echo first")
    expect(result.stdout == "first\n", f"status {result.returncode}, {result.stdout!r}")
    seconds = time.monotonic() - began
    return f"started in {subject.start_seconds:.2f} s, first command {1000 * seconds:.1f} ms later"


def _latency(subject: LiveSubject) -> str:
    times: list[float] = []
    for _ in range(_TRIES):
        began = time.perf_counter()
        result = bounded(subject.sandbox.exec(["true"], timeout=60))
        times.append(1000 * (time.perf_counter() - began))
        expect(result.returncode == 0, f"status {result.returncode}")
    p95 = statistics.quantiles(times, n=20)[-1]
    return f"p50 {statistics.median(times):.1f} ms, p95 {p95:.1f} ms, of {_TRIES}"


def _bytes(subject: LiveSubject) -> str:
    sent = bytes(range(256)) + os.urandom(_MEGABYTE - 256)
    began = time.monotonic()
    result = subject.run("cat", stdin=sent)
    seconds = time.monotonic() - began
    got = result.stdout_bytes
    if got != sent:
        pairs = enumerate(zip(got, sent, strict=False))
        right = next((at for at, (a, b) in pairs if a != b), min(len(got), len(sent)))
        raise DifferentError(f"{len(got)} of {len(sent)} bytes came back, right up to {right}")
    return f"all {len(got)} bytes, in {seconds:.2f} s"


def _statuses(subject: LiveSubject) -> str:
    for status in _STATUSES:
        result = subject.run('exit "$1"', str(status))
        expect(
            result.returncode == status and result.ending in (Ending.EXITED, None),
            f"exit {status} came as {result.returncode}, {result.ending}",
        )
    for what, argv, cwd in (
        ("a missing program", ["no-such-program-at-all"], None),
        ("a missing cwd", ["true"], f"{subject.workdir}/no/such/folder"),
    ):
        try:
            result = bounded(subject.sandbox.exec(argv, cwd=cwd, timeout=60))
        except CommandStartError:
            continue
        raise DifferentError(f"{what} had status {result.returncode}")
    return f"{', '.join(map(str, _STATUSES))}; CommandStartError for no program, no cwd"


def _signals(subject: LiveSubject) -> str:
    named = True
    for name, number in _SIGNALS.items():
        result = subject.run('kill -s "$1" $$; sleep 60', name)
        expect(
            result.returncode == 128 + number and result.ending in (Ending.SIGNAL, None),
            f"SIG{name} came as status {result.returncode}, {result.ending}",
        )
        named = named and result.ending is not None
    return f"SIG{', SIG'.join(_SIGNALS)}{'' if named else ', as statuses: it tells no more'}"


def _stderr(subject: LiveSubject) -> str:
    result = subject.run(_LINES)
    for name, got in (("out", result.stdout), ("err", result.stderr)):
        expect(
            got == "".join(f"{name}{i}\n" for i in range(500)),
            f"std{name} is not as written: {len(got)} characters, beginning {got[:60]!r}",
        )
    return "500 lines each, exact"


def _output(subject: LiveSubject) -> str:
    made = 'head -c "$1" /dev/urandom > much && sha256sum < much | cut -d " " -f 1'
    digest = subject.output_of(made, str(_MUCH))
    began = time.monotonic()
    result = subject.run("cat much && rm much", timeout=300)
    seconds = time.monotonic() - began
    got = result.stdout_bytes
    expect(
        hashlib.sha256(got).hexdigest() == digest,
        f"{len(got)} of {_MUCH} bytes, status {result.returncode}: not what was written",
    )
    return f"exact, {_MUCH / seconds / 1e6:.1f} MB/s"


def _at_once(subject: LiveSubject) -> str:
    began = time.monotonic()
    running = [subject.start(_MEET, str(number), str(_MANY)) for number in range(_MANY)]
    _, late = wait(running, num_returns=_MANY, timeout=180)
    expect(not late, f"{len(late)} of {_MANY} had not ended after 180 s")
    met = [process.result().stdout.strip() for process in running]
    expect(met == [str(_MANY)] * _MANY, f"they saw {', '.join(met)} of {_MANY} running")
    return f"all {_MANY} ran at a time, {time.monotonic() - began:.2f} s"


CHECKS = (
    Check("start", "a sandbox in which a command runs", _start),
    Check("latency", "`true` exits with 0, each time", _latency),
    Check("bytes", "1 MiB of every byte through stdin and stdout, exact", _bytes),
    Check(
        "statuses",
        "every exit status unchanged, and none for a command that was not started",
        _statuses,
    ),
    Check("signals", "128 + n, and a signal as the ending", _signals),
    Check("stderr", "apart from stdout, both exact", _stderr),
    Check("much output", "20 MB, exact", _output),
    Check("at once", "8 commands wait for each other and meet", _at_once),
)
