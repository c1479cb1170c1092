"""AutoGen's executor on Docker: code blocks in one container; each is written to a file and run."""

import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version

from autogen_core import CancellationToken  # type: ignore[import-not-found]  # in its own environment
from autogen_core.code_executor import CodeBlock  # type: ignore[import-not-found]  # in its own environment
from autogen_ext.code_executors.docker import DockerCommandLineCodeExecutor  # type: ignore[import-not-found]  # in its own environment

from benchmarks.sides.serve import IMAGE, Work, expect, serve


@asynccontextmanager
async def living(argv: list[str], stdout: str) -> AsyncIterator[Work]:
    """A block of shell or Python in a container that lives; it joins the streams and the status."""
    shell = argv[0] == "true"
    block = CodeBlock(language="sh" if shell else "python", code=argv[-1])
    with tempfile.TemporaryDirectory() as folder:
        executor = DockerCommandLineCodeExecutor(image=IMAGE, work_dir=folder)
        await executor.start()
        try:

            async def one(_: int) -> None:
                done = await executor.execute_code_blocks([block], CancellationToken())
                expect("status and output", (done.exit_code, done.output), (0, stdout))

            yield Work(one)
        finally:
            await executor.stop()


if __name__ == "__main__":
    serve(version("autogen-ext"), {"living": living})
