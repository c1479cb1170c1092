"""Distinguish a program's failure, which is a result, from an infrastructure failure, which raises."""

from sandboxkit import (
    CommandFailedError,
    CommandStartError,
    CommandTimeoutError,
    ConfigurationError,
    SandboxFileNotFoundError,
    SandboxTerminatedError,
    Session,
)

with Session() as session:
    sandbox = session.sandbox()

    # A non-zero exit is a result.
    result = sandbox.exec(["python", "-c", "import sys; sys.exit('no luck')"]).result()
    print(f"returned {result.returncode}: {result.stderr.strip()}")

    # With check=True it raises an exception that contains the result.
    try:
        sandbox.exec(["sh", "-c", "echo half; exit 3"], check=True).result()
    except CommandFailedError as error:
        print(f"raised {error.result.returncode}: {error.result.stdout.strip()}")

    # A timeout kills the whole process tree and keeps the output so far.
    try:
        sandbox.exec(["sh", "-c", "echo started; sleep 60 & wait"], timeout=2).result()
    except CommandTimeoutError as error:
        print(f"timed out after printing {error.result.stdout.strip()!r}")

    # A command that cannot be started raises an error with the reason; it has no exit status.
    try:
        sandbox.exec(["no-such-program"]).result()
    except CommandStartError as error:
        print("not started; worth trying again:", error.retryable)

    try:
        sandbox.read_file("/workspace/absent").result()
    except SandboxFileNotFoundError as error:
        print("no file:", error.path)

    # A mistake in the call raises before anything runs.
    try:
        sandbox.exec("echo hello")
    except ConfigurationError as error:
        print("mistake:", str(error).partition(";")[0])

    sandbox.stop().result()
    try:
        sandbox.exec(["true"])
    except SandboxTerminatedError as error:
        print("stopped; worth trying again:", error.retryable)
