"""Use a sandbox from another process, by its id, while its owner keeps it alive."""

import subprocess
import sys

from sandboxkit import Sandbox, Session


def own() -> None:
    """Start a sandbox, leave a note in it, and let another process find both."""
    with Session(tags="example:reconnect") as session:
        sandbox = session.sandbox().start().result()
        assert sandbox.id is not None
        sandbox.write_file("/workspace/note", "left by the owner").result()
        subprocess.run([sys.executable, __file__, sandbox.id], check=True)
        print("owner reads:", sandbox.read_file("/workspace/note").result().decode())


def visit(sandbox_id: str) -> None:
    """Reach the sandbox and change the note; it is not ours to stop, and we do not."""
    sandbox = Sandbox.from_id(sandbox_id).result()
    print("visitor reads:", sandbox.read_file("/workspace/note").result().decode())
    sandbox.write_file("/workspace/note", "changed by the visitor").result()
    result = sandbox.exec(["wc", "-w", "/workspace/note"], check=True).result()
    print("visitor counts words:", result.stdout.split()[0], flush=True)


if len(sys.argv) > 1:
    visit(sys.argv[1])
else:
    own()
