"""Copy single files and whole folders to and from a sandbox, and list the files there."""

import tempfile
from pathlib import Path

from sandboxkit import Session

with tempfile.TemporaryDirectory() as folder, Session() as session:
    here = Path(folder)
    sandbox = session.sandbox(files={"/workspace/config.json": '{"seed": 1}'})
    print(sandbox.read_file("/workspace/config.json").result().decode())

    project = here / "project"
    (project / "data").mkdir(parents=True)
    (project / "main.py").write_text("print(sum(map(int, open('data/numbers').read().split())))")
    (project / "data" / "numbers").write_text("1 2 3 4")
    sandbox.upload(project, "/workspace/project").result()  # one stream for all files

    done = sandbox.exec(["python", "main.py"], cwd="/workspace/project", check=True).result()
    sandbox.write_file("/workspace/project/out/sum.txt", done.stdout, mode=0o600).result()

    for entry in sandbox.list_dir("/workspace/project").result():
        print(f"{entry.type} {entry.path}")
    entry = sandbox.stat("/workspace/project/out/sum.txt").result()
    print(f"{entry.size} bytes, mode {entry.mode:o}")

    sandbox.remove("/workspace/project/data", recursive=True).result()
    sandbox.download("/workspace/project", here / "copy").result()
    copied = sorted(path for path in (here / "copy").rglob("*") if path.is_file())
    print([str(path.relative_to(here)) for path in copied])
    print((here / "copy" / "out" / "sum.txt").read_text().strip())
