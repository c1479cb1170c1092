"""Runs a submitted Python program once, under the limits that graders use."""

from collections.abc import Mapping

from sandboxkit import ProcessResult, Session
from sandboxkit.integrations.rewards import _programs
from sandboxkit.integrations.rewards._limits import Limits
from sandboxkit.integrations.rewards._run import run
from sandboxkit.integrations.rewards._verdict import Verdict

SOLUTION = "/workspace/solution.py"


async def run_program(
    session: Session,
    code: str,
    *,
    stdin: bytes = b"",
    files: Mapping[str, bytes] | None = None,
    limits: Limits | None = None,
) -> ProcessResult | Verdict:
    """Run a Python program once, in a pristine sandbox, and return its result.

    Returns a Verdict if there is no result: the program exceeded a limit or was killed, or the
    infrastructure failed after its retries (INFRA_ERROR). `files` maps paths in the sandbox to the
    contents of additional files. Raises ConfigurationError, for example if the sandbox has no Python.
    """
    limits = limits or Limits()
    return await run(
        session,
        _programs.file_program(SOLUTION, limits),
        limits,
        stdin=stdin,
        files={**(files or {}), SOLUTION: code.encode(errors="surrogatepass")},
    )
