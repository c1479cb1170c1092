"""The executor that runs the code of a smolagents CodeAgent in a sandbox."""

from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

from smolagents import Tool
from smolagents.local_python_executor import (
    CodeOutput,
    ExecutionTimeoutError,
    InterpreterError,
    PythonExecutor,
)
from smolagents.serialization import SafeSerializer, SerializationError
from smolagents.tools import get_tools_definition_code
from smolagents.utils import truncate_content

from sandboxkit import ConfigurationError, Operation, Sandbox, SandboxError, Session
from sandboxkit.bundle import bundle
from sandboxkit.integrations.smolagents import _in_sandbox
from sandboxkit.kernel import CellOutcome, CellResult, Kernel

T = TypeVar("T")
_BOOT = bundle("sandboxkit.integrations.smolagents", "_in_sandbox") + "module.display = display"
_OUTPUT_LIMIT = 2 * _in_sandbox.MOST_FINAL + (1 << 16)
"""In bytes. A kernel truncates displayed values at half of its output limit."""
_GRACE_SECONDS = 5.0
_SETUP_SECONDS = 60.0
_INSTALL_SECONDS = 600.0
_MAX_PRINTED = 50_000
_MOST_TEXT = 50_000
_GONE = "All variables, functions and imports of earlier steps are gone."
_PACKAGES = {"PIL": "pillow"}
_NOT_INSTALLED = ("smolagents",)


class SandboxLost(BaseException):
    """The sandbox failed during a step; `__cause__` is sandboxkit's error.

    The cause is an infrastructure failure, except a SandboxTerminatedError with `by_command` or
    `out_of_memory`. This is a BaseException, because a CodeAgent shows every Exception of a step to the
    model as the model's mistake. If it leaves a `with SandboxkitExecutor(...)` block, the cause is
    raised instead.
    """


class SandboxkitExecutor(PythonExecutor):  # type: ignore[misc]  # smolagents ships no types
    """Runs a CodeAgent's code in a sandbox of `session`, which starts with the first step.

        with Session("docker", image="python:3.11") as session:
            with SandboxkitExecutor(session) as executor:
                CodeAgent(tools=[], model=model, executor=executor).run("...")

    A step that exceeds `timeout` seconds is interrupted, and variables are kept. If it cannot be
    interrupted, or ends the process itself, the variables are lost. The model sees these events and
    every error of its code. An infrastructure failure raises SandboxLost. Tools are sent as source
    and run in the sandbox. `cleanup()`, which the agent's own cleanup calls, deletes the sandbox.
    """

    def __init__(
        self,
        session: Session,
        *,
        timeout: float = 60.0,
        python: str = "python3",
        max_print_outputs_length: int = _MAX_PRINTED,
    ) -> None:
        if timeout <= 0:
            raise ConfigurationError(f"timeout={timeout!r} is not a positive number of seconds")
        self._session, self._timeout, self._python = session, timeout, python
        self._max_printed = max_print_outputs_length
        self._sandbox = session.sandbox()
        self._kernel: Kernel | None = None
        self._tools = ""
        self._variables: dict[str, str] = {}
        self._closed = False
        self.state = {"_print_outputs": ""}
        """Output of the last step, which smolagents shows with the step's error."""

    @property
    def sandbox(self) -> Sandbox:
        """The sandbox in which the code runs, for example to transfer files."""
        return self._sandbox

    def send_variables(self, variables: dict[str, Any]) -> None:
        """Set variables for the code. Raises SerializationError, which names a variable that is no data."""
        for name, value in variables.items():
            try:
                self._variables[name] = SafeSerializer.dumps({name: value})
            except SerializationError as error:
                raise SerializationError(
                    f"the variable {name!r} cannot be sent to a sandbox: {error}"
                ) from error
        if variables:
            self._wait(self._send({name: self._variables[name] for name in variables}))

    def send_tools(self, tools: dict[str, Tool]) -> None:
        """Define the tools in the sandbox.

        Packages that they import and the sandbox lacks are installed with pip. Raises
        ConfigurationError if that fails, and for an agent among the tools.
        """
        if agents := [name for name, tool in tools.items() if not isinstance(tool, Tool)]:
            raise ConfigurationError(
                f"{agents[0]!r} is an agent: agents cannot be sent to a sandbox, only tools"
            )
        needed = {name for tool in tools.values() for name in tool.to_dict()["requirements"]}
        self._tools = get_tools_definition_code(tools)
        self._wait(self._define(sorted(needed - {*_NOT_INSTALLED})))

    def __call__(self, code_action: str) -> CodeOutput:
        """Run one step. Raises SandboxLost.

        Also raises InterpreterError and ExecutionTimeoutError, which the agent shows to the model.
        """
        try:
            return self._wait(self._step(code_action))
        except SandboxError as error:
            self._drop()
            raise SandboxLost(str(error)) from error

    def cleanup(self) -> None:
        """Delete the sandbox. Safe to call repeatedly."""
        self._closed = True
        self._kernel = None
        self._sandbox.stop().result()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.cleanup()
        if isinstance(error, SandboxLost) and error.__cause__ is not None:
            raise error.__cause__

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        if self._closed:
            work.close()
            raise ConfigurationError("this executor was cleaned up; make a new one")
        operation = Operation(work)
        try:
            return operation.result()
        except BaseException:
            operation.cancel()  # after Ctrl-C: interrupts the step and keeps the variables
            raise

    async def _step(self, code: str) -> CodeOutput:
        self.state["_print_outputs"] = ""
        kernel = await self._ready()
        result = await kernel.run(code, timeout=self._timeout, grace=_GRACE_SECONDS)
        printed = "".join(each.text for each in result.outputs if each.kind in ("stdout", "stderr"))
        printed = truncate_content(printed, max_length=self._max_printed)
        self.state["_print_outputs"] = printed
        self._refuse_ended(result)
        if result.outcome is CellOutcome.TIMED_OUT:
            raise ExecutionTimeoutError(
                f"The code ran longer than {self._timeout:g} seconds and was interrupted. Variables "
                "that it had assigned by then are kept."
            )
        if result.error is not None and result.error.name == _in_sandbox.FinalAnswer.__name__:
            return CodeOutput(_decoded(result), printed, True)
        if result.error is not None:
            text = result.error.traceback or f"{result.error.name}: {result.error.message}"
            raise InterpreterError(f"Code execution failed:\n{text[-_MOST_TEXT:]}")
        if result.text is None:
            return CodeOutput(None, printed, False)
        shown = await kernel.run(_call("show_last"), timeout=self._timeout, grace=_GRACE_SECONDS)
        self._refuse_ended(shown)
        value = _decoded(shown) if _encoded(shown) else result.text[:_MOST_TEXT]
        return CodeOutput(value, printed, False)

    async def _ready(self) -> Kernel:
        """Return the kernel; a new one gets the tools and variables that were sent before."""
        if self._kernel is None:
            kernel = self._sandbox.python(
                python=self._python, ipykernel=False, output_limit=_OUTPUT_LIMIT
            )
            try:
                self._kernel = await kernel.start()
                await self._set_up(f"exec({_BOOT!r}, {{'display': display}})")
                await self._send(self._variables)
                if self._tools:
                    await self._set_up(f"{self._tools}\n{_call('finish_with_answer')}")
            except BaseException:
                self._drop()
                raise
        return self._kernel

    async def _send(self, variables: dict[str, str]) -> None:
        decoder = SafeSerializer.get_deserializer_code(False)
        for values in variables.values():
            await self._set_up(_call("receive", decoder, values))

    async def _define(self, modules: list[str]) -> None:
        code, self._tools = self._tools, ""
        found = _decoded(await self._set_up(_call("show_lacking", modules)))
        if lacking := [name for name in modules if name in found]:
            await self._install([_PACKAGES.get(name, name) for name in lacking])
        await self._set_up(f"{code}\n{_call('finish_with_answer')}")
        self._tools = code

    async def _set_up(self, code: str) -> CellResult:
        """Run a setup cell. Raises ConfigurationError if it fails."""
        kernel = await self._ready()
        result = await kernel.run(code, timeout=_SETUP_SECONDS)
        if result.ended:
            self._drop()
        if result.error is not None:
            raise ConfigurationError(
                f"setting up the sandbox failed: {result.error.traceback or result.error.message}"
            )
        return result

    async def _install(self, packages: list[str]) -> None:
        argv = [self._python, "-m", "pip", "install", "-q", *packages]
        result = await self._sandbox.exec(argv, timeout=_INSTALL_SECONDS)
        if result.returncode:
            text = " ".join(result.stderr.split())[-500:]
            raise ConfigurationError(
                f"the tools need {', '.join(packages)}, which the sandbox lacks and pip could not "
                f"install: {text}; use an image that has them, or network='internet'"
            )

    def _refuse_ended(self, result: CellResult) -> None:
        if not result.ended:
            return
        self._drop()
        if result.outcome is CellOutcome.TIMED_OUT:
            raise InterpreterError(
                f"The code ran longer than {self._timeout:g} seconds and did not stop when "
                f"interrupted, so its Python process was killed. {_GONE}"
            )
        why = result.error.message.partition(";")[0] if result.error else "the kernel has ended"
        raise InterpreterError(f"{why}. {_GONE}")

    def _drop(self) -> None:
        kernel, self._kernel = self._kernel, None
        if kernel is not None:
            kernel.close()


def _call(function: str, *arguments: object) -> str:
    """Return a cell that calls a function of `_in_sandbox`, even if the agent's code redefines its name."""
    return f"__import__({_in_sandbox.__name__!r}, None, None, '*').{function}(*{arguments!r})"


def _encoded(result: CellResult) -> list[Any]:  # Any: JSON that the sandbox wrote
    return [
        each.data[_in_sandbox.MEDIA_TYPE]
        for each in result.outputs
        if _in_sandbox.MEDIA_TYPE in each.data
    ]


def _decoded(result: CellResult) -> Any:  # Any: whatever value the code had
    """Decode the last displayed value, which the code may have forged. Raises InterpreterError."""
    try:
        return SafeSerializer.from_json_safe(_encoded(result)[-1])
    except Exception as error:  # noqa: BLE001 - a forged value is the code's own fault
        raise InterpreterError(f"The value of the code is not plain data: {error}") from None
