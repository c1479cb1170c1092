"""Use a sandbox from another process, by its id, while its owner keeps it running."""

import subprocess
import sys

from sandboxkit import Sandbox, Session


def own() -> None:
    """Start a sandbox, write a note in it, and run another process that uses the sandbox."""
    with Session(tags="example:reconnect") as session:
        sandbox = session.sandbox().start().result()
        assert sandbox.id is not None
        sandbox.write_file("/workspace/note", "left by the owner").result()
        subprocess.run([sys.executable, __file__, sandbox.id], check=True)
        print("owner reads:", sandbox.read_file("/workspace/note").result().decode())


def visit(sandbox_id: str) -> None:
    """Connect to the sandbox and change the note. Only its owner stops the sandbox."""
    sandbox = Sandbox.from_id(sandbox_id).result()
    print("visitor reads:", sandbox.read_file("/workspace/note").result().decode())
    sandbox.write_file("/workspace/note", "changed by the visitor").result()
    result = sandbox.exec(["wc", "-w", "/workspace/note"], check=True).result()
    print("visitor counts words:", result.stdout.split()[0], flush=True)


if len(sys.argv) > 1:
    visit(sys.argv[1])
else:
    own()
