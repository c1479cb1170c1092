"""Read a command's output line by line while it runs, then kill the command."""

from sandboxkit import Session

COUNT = """
import time
for step in range(1000):
    print("step", step, flush=True)
    time.sleep(0.1)
"""

with Session() as session:
    process = session.sandbox().exec(["python", "-c", COUNT], timeout=120)
    for line in process.stdout.lines():
        print(line, "(still running)" if process.poll() is None else "(ended)")
        if line == "step 3":
            break
    process.kill()  # kills the command and every process that it started
    result = process.result()
    print(f"exit status {result.returncode}, all output kept: {result.stdout[:13]!r}...")
