"""The executor that a CodeAgent is given."""

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
from sandboxkit.integrations.smolagents._kernel import Kernel, KernelEndedError, Reply

T = TypeVar("T")
_SETUP_SECONDS = 60.0
_INSTALL_SECONDS = 600.0
_MAX_PRINTED = 50_000
_BYTES_A_CHARACTER = 4
_GONE = "All variables, functions and imports of earlier steps are gone."
_PACKAGES = {"PIL": "pillow"}
_NOT_INSTALLED = ("smolagents",)


class SandboxLost(BaseException):
    """The sandbox failed under a step; `__cause__` is sandboxkit's error.

    That is the infrastructure's, but for a SandboxTerminatedError that says `by_command` or
    `out_of_memory`. It is no Exception, because a CodeAgent shows every Exception of a step to its model as the
    model's own mistake. As a context manager the executor raises the cause itself.
    """


class SandboxkitExecutor(PythonExecutor):  # type: ignore[misc]  # smolagents ships no types
    """Runs a CodeAgent's code in a sandbox of `session`, which starts with the first step.

        with Session("docker", image="python:3.11") as session:
            with SandboxkitExecutor(session) as executor:
                CodeAgent(tools=[], model=model, executor=executor).run("...")

    A step that runs past `timeout` seconds is interrupted and keeps its variables; one that
    cannot be interrupted loses its process, as does one that ends it. All of these, and every
    error of the code, are the model's to see; a failure of the infrastructure is not: see
    SandboxLost. Tools are sent as source and run in the sandbox. `cleanup()`, which the agent's
    own calls, deletes the sandbox.
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
        self._steps = 0
        self._closed = False
        self.state = {"_print_outputs": ""}
        """What the last step printed: smolagents shows it beside the step's error."""

    @property
    def sandbox(self) -> Sandbox:
        """The sandbox of the steps, for the files that they need and make."""
        return self._sandbox

    def send_variables(self, variables: dict[str, Any]) -> None:
        """Set variables of the code. Raises SerializationError, naming what cannot be sent."""
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

        What they import is installed with pip where the sandbox lacks it; ConfigurationError where
        that fails, and for an agent among the tools.
        """
        if agents := [name for name, tool in tools.items() if not isinstance(tool, Tool)]:
            raise ConfigurationError(
                f"{agents[0]!r} is an agent: agents cannot be sent to a sandbox, only tools"
            )
        needed = {name for tool in tools.values() for name in tool.to_dict()["requirements"]}
        self._tools = get_tools_definition_code(tools)
        self._wait(self._define(sorted(needed - {*_NOT_INSTALLED})))

    def __call__(self, code_action: str) -> CodeOutput:
        """Run one step. Raises InterpreterError and ExecutionTimeoutError for the model to see."""
        try:
            return self._wait(self._step(code_action))
        except SandboxError as error:
            raise SandboxLost(str(error)) from error

    def cleanup(self) -> None:
        """Delete the sandbox; again and again without harm."""
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
            if not operation.done():  # Ctrl-C: nobody will read what the step still answers
                operation.cancel()
                self._drop()
            raise

    async def _step(self, code: str) -> CodeOutput:
        self._steps += 1
        self.state["_print_outputs"] = ""
        try:
            kernel = await self._ready()
            try:
                reply = await kernel.ask(
                    "run", self._timeout, code=code, name=f"<step {self._steps}>"
                )
            finally:
                printed = truncate_content(kernel.printed(), max_length=self._max_printed)
                self.state["_print_outputs"] = printed
        except KernelEndedError as error:
            self._drop()
            raise InterpreterError(f"{error} {_GONE}") from None
        except SandboxError:
            self._drop()
            raise
        if reply.get("timed_out"):
            raise ExecutionTimeoutError(
                f"The code ran longer than {self._timeout:g} seconds and was interrupted. What it "
                "had assigned by then is kept."
            )
        if "error" in reply:
            raise InterpreterError(f"Code execution failed:\n{reply['error']}")
        return CodeOutput(_decoded(reply), printed, bool(reply.get("final")))

    async def _ready(self) -> Kernel:
        """The process, with the tools and variables of the process before it."""
        if self._kernel is None:
            kernel = Kernel(self._sandbox, self._python, self._max_printed * _BYTES_A_CHARACTER)
            try:
                await kernel.begin()
                self._kernel = kernel
                await self._send(self._variables)
                if self._tools:
                    await self._set_up("define", code=self._tools)
            except BaseException:
                kernel.kill()
                self._kernel = None
                raise
        return self._kernel

    async def _send(self, variables: dict[str, str]) -> None:
        decoder = SafeSerializer.get_deserializer_code(False)
        for values in variables.values():
            await self._set_up("receive", decoder=decoder, values=values)

    async def _define(self, modules: list[str]) -> None:
        code, self._tools = self._tools, ""
        found = (await self._set_up("lacking", modules=modules))["value"]
        if lacking := [name for name in modules if name in found]:
            await self._install([_PACKAGES.get(name, name) for name in lacking])
        await self._set_up("define", code=code)
        self._tools = code

    async def _set_up(self, do: str, **fields: object) -> Reply:
        kernel = await self._ready()
        try:
            reply = await kernel.ask(do, _SETUP_SECONDS, **fields)
        except KernelEndedError as error:
            self._drop()
            raise ConfigurationError(f"the sandbox was not set up: {error}") from None
        if "error" in reply:
            raise ConfigurationError(f"the sandbox was not set up: {reply['error']}")
        return reply

    async def _install(self, packages: list[str]) -> None:
        argv = [self._python, "-m", "pip", "install", "-q", *packages]
        result = await self._sandbox.exec(argv, timeout=_INSTALL_SECONDS)
        if result.returncode:
            said = " ".join(result.stderr.split())[-500:]
            raise ConfigurationError(
                f"the tools need {', '.join(packages)}, which the sandbox lacks and pip could not "
                f"install: {said}; use an image that has them, or network='internet'"
            )

    def _drop(self) -> None:
        kernel, self._kernel = self._kernel, None
        if kernel is not None:
            kernel.kill()


def _decoded(reply: Reply) -> Any:  # Any: whatever value the code had
    """The value of an answer, which the code may have written itself."""
    try:
        return SafeSerializer.from_json_safe(reply.get("value"))
    except Exception as error:  # noqa: BLE001 - whatever was forged, it is the code's own
        raise InterpreterError(f"The value of the code is not one of plain data: {error}") from None
