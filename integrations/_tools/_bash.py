"""The bash tool: scripts one after another, with the directory and environment kept."""

from collections.abc import Mapping
from dataclasses import dataclass

from sandboxkit import ConfigurationError, Sandbox
from sandboxkit.integrations._tools._clock import Clock
from sandboxkit.integrations._tools._result import ToolError

_OUTPUT_LIMIT = 1024 * 1024
_KILL_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class BashResult:
    """What a script printed and how it ended."""

    output: str
    """Standard output and standard error, in the order they came."""
    returncode: int
    timed_out: bool = False


class Bash:
    """A shell of one sandbox. The directory and exported variables last from script to script.

    A script that runs past its time is killed with all it started; the sandbox lives on, with
    the directory and variables as they were before the script.
    """

    def __init__(
        self,
        sandbox: Sandbox,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float = 60.0,
        clock: Clock | None = None,
    ) -> None:
        if timeout <= 0:
            raise ConfigurationError(f"timeout={timeout!r} is not a positive number of seconds")
        self._sandbox = sandbox
        self._shell = sandbox.shell(cwd=cwd, env=env)
        self._timeout = timeout
        self._clock = clock or Clock()

    async def run(self, script: str) -> BashResult:
        """Run a script. Raises ToolError where it cannot be run, else the infrastructure's errors."""
        if "\0" in script:
            raise ToolError("the command contains a NUL character")
        await self._sandbox.start()  # its own time, not the script's
        try:
            process = self._shell.run(f"exec 2>&1\n{script}", output_limit=_OUTPUT_LIMIT)
        except (ConfigurationError, UnicodeEncodeError) as error:
            raise ToolError(str(error)) from None
        timed_out = False
        try:
            result = await self._clock.wait_for(process, self._timeout)
        except TimeoutError:
            timed_out = True
            process.kill()
            result = await Clock().wait_for(process, _KILL_SECONDS)
        # What the shell itself says, such as of a syntax error, comes on stderr.
        return BashResult(result.stdout + result.stderr, result.returncode, timed_out)
