"""Run untrusted code in a sandbox and read what it printed and wrote."""

from sandboxkit import Session

PROGRAM = "print(6 * 7); open('answer.txt', 'w').write('forty-two')"

with Session(tags=("quickstart", "run:1")) as session:
    sandbox = session.sandbox()  # nothing has happened yet: it starts on first use
    process = sandbox.exec(["python", "-c", PROGRAM], timeout=10)
    result = process.result()  # blocks; in a coroutine: await process
    print(f"exit status {result.returncode}, printed {result.stdout!r}")
    print(sandbox.read_file("/workspace/answer.txt").result().decode())
