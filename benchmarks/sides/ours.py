"""sandboxkit: fresh sandboxes, commands, files and ports of one that lives, a warm pool, `run_python`."""

import asyncio
import hashlib
import json
import os
import resource
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Literal

from benchmarks.sides.http_gets import SENDER, SERVER, gets
from benchmarks.sides.memory import held, shims
from benchmarks.sides.serve import LABEL, Work, expect, mbpp_rows, serve
from sandboxkit import Interpreter, ProcessResult, Sandbox, Session
from sandboxkit.integrations.rewards import HostCompare, Limits, Outcome

Isolation = Literal["namespaces", "landlock", "gvisor"] | None
TAGS = f"bench:{LABEL}"


def _check(done: ProcessResult, stdout: str) -> None:
    expect("status and output", (done.returncode, done.stdout), (0, stdout))


@asynccontextmanager
async def fresh(
    provider: str, argv: list[str], stdout: str, isolation: Isolation = None
) -> AsyncIterator[Work]:
    """`session.run`: a sandbox for each command. A turn ends when all of them are deleted."""
    async with Session(provider, tags=TAGS, isolation=isolation) as session:

        async def one(_: int) -> None:
            _check(await session.run(argv), stdout)

        async def finish() -> None:
            while await session.list(TAGS):  # noqa: ASYNC110  # nothing tells of a deletion
                await asyncio.sleep(0.01)

        yield Work(one, finish)


@asynccontextmanager
async def living(
    provider: str, argv: list[str], stdout: str, isolation: Isolation = None
) -> AsyncIterator[Work]:
    """`sandbox.exec` in a sandbox that lives."""
    async with (
        Session(provider, tags=TAGS, isolation=isolation) as session,
        session.sandbox() as sandbox,
    ):

        async def one(_: int) -> None:
            _check(await sandbox.exec(argv), stdout)

        yield Work(one)


@asynccontextmanager
async def floor_in_container(argv: list[str], stdout: str) -> AsyncIterator[Work]:
    """Run the commands from one Python process inside the container, without any exchange with it."""
    script = Path(__file__).with_name("in_container.py").read_text()
    async with Session("docker", tags=TAGS) as session, session.sandbox() as sandbox:

        async def one(times: int) -> None:
            arguments = [json.dumps(argv), stdout, "8", "32"]
            _check(await sandbox.exec(["python3", "-c", script, *arguments]), "32\n")

        yield Work(one)


@asynccontextmanager
async def write(provider: str) -> AsyncIterator[Work]:
    """A file of 1 KB."""
    data = os.urandom(1024)
    async with Session(provider, tags=TAGS) as session, session.sandbox() as sandbox:

        async def one(_: int) -> None:
            await sandbox.write_file("/tmp/file", data)

        yield Work(one)
        done = await sandbox.exec(["sha256sum", "/tmp/file"])
        expect("file", done.stdout.split()[0], hashlib.sha256(data).hexdigest())


@asynccontextmanager
async def _served(provider: str, *program: str) -> AsyncIterator[int]:
    """The port of this machine that leads, through `sandbox.expose`, to a server in a sandbox without a network."""
    async with (
        Session(provider, network="none", tags=TAGS) as session,
        session.sandbox() as sandbox,
    ):
        server = sandbox.exec(["python3", "-c", *program])
        port = int(await anext(aiter(server.stdout.lines())))
        async with await sandbox.expose(port) as way:
            yield way.port


@asynccontextmanager
async def exposed(provider: str) -> AsyncIterator[Work]:
    """GET requests to the server."""
    async with _served(provider, SERVER) as port:
        with gets(port) as get:
            yield Work(get)


@asynccontextmanager
async def exposed_bulk(provider: str, megabytes: int) -> AsyncIterator[Work]:
    """Bytes that the server sends."""
    size = megabytes * 10**6
    async with _served(provider, SENDER, str(size)) as port:

        def one(_: int) -> None:
            total, into = 0, bytearray(1 << 20)
            with socket.create_connection(("127.0.0.1", port)) as source:
                while count := source.recv_into(into):
                    total += count
            expect("bytes", total, size)

        yield Work(one)


@asynccontextmanager
async def many(provider: str, sandboxes: int) -> AsyncIterator[Work]:
    """`true` in each of so many sandboxes that live; and what they hold of the machine's memory."""
    before = shims()
    async with Session(provider, tags=TAGS) as session:
        made = [session.sandbox() for _ in range(sandboxes)]
        for start in [sandbox.start() for sandbox in made]:
            await start
        containers = shims() - before

        async def one(number: int) -> None:
            _check(await made[number % sandboxes].exec(["true"]), "")

        def facts() -> dict[str, float]:
            return {"each_mb": held(containers, os.getpid()) / sandboxes}

        yield Work(one, facts=facts)


@asynccontextmanager
async def output(provider: str, megabytes: int) -> AsyncIterator[Work]:
    """A command that prints far more than is kept; and by how much the client's peak grows."""
    argv = ["head", "-c", str(megabytes << 20), "/dev/zero"]
    async with Session(provider, tags=TAGS) as session, session.sandbox() as sandbox:
        _check(await sandbox.exec(["true"]), "")
        before = _peak()

        async def one(_: int) -> None:
            done = await sandbox.exec(argv)
            expect("status and truncated", (done.returncode, done.truncated), (0, True))

        yield Work(one, facts=lambda: {"growth_mb": _peak() - before})


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6


@asynccontextmanager
async def warm(provider: str, pool: int, argv: list[str], stdout: str) -> AsyncIterator[Work]:
    """Take a sandbox from the pool and run a command; the pool is full before each turn."""
    async with Session(provider, pool=pool, tags=TAGS) as session:
        taken: list[Sandbox] = []

        async def before() -> None:
            for sandbox in taken:
                await sandbox.stop()
            taken.clear()
            await session.warm()

        async def one(_: int) -> None:
            taken.append(session.sandbox())
            _check(await taken[-1].exec(argv), stdout)

        yield Work(one, before=before)


@asynccontextmanager
async def run_python(
    provider: str, sandboxes: int, code: str, stdout: str, preload: list[str]
) -> AsyncIterator[Work]:
    """`session.run_python`: each job isolated, in one of so many sandboxes that are reset between."""
    async with Session(
        provider,
        pool=sandboxes,
        max_concurrency=sandboxes,
        profile="strict",
        reuse="reset",
        interpreter=Interpreter(preload=tuple(preload)),
        tags=TAGS,
    ) as session:
        await session.warm()

        async def one(_: int) -> None:
            _check(await session.run_python(code), stdout)

        yield Work(one)


@asynccontextmanager
async def mbpp(provider: str, problems: str, sandboxes: int, reset: bool) -> AsyncIterator[Work]:
    """Reference solutions graded by HostCompare, in fresh sandboxes or in ones that are reset."""
    rows = mbpp_rows(problems)
    grader = HostCompare(Limits(timeout=60, reuse="reset" if reset else "never"))
    pool = sandboxes if reset else None
    async with Session(provider, tags=TAGS, max_concurrency=sandboxes, pool=pool) as session:

        async def one(number: int) -> None:
            problem = rows[number % len(rows)]
            verdict = await grader.grade(session, problem["code"], problem)
            why = f"problem {problem['task_id']}: {verdict.detail}"
            expect(why, verdict.outcome, Outcome.PASSED)

        yield Work(one)


if __name__ == "__main__":
    measures = (
        fresh,
        living,
        floor_in_container,
        write,
        exposed,
        exposed_bulk,
        many,
        output,
        warm,
        run_python,
        mbpp,
    )
    serve(version("sandboxkit-sdk"), {measure.__name__: measure for measure in measures})
