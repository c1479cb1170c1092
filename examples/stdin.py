"""Write a command's standard input, all at once or line by line in response to its output."""

from sandboxkit import Session

CALCULATOR = """
import sys
for line in sys.stdin:
    a, b = map(int, line.split())
    print(a * b, flush=True)
"""

with Session() as session:
    sandbox = session.sandbox()

    result = sandbox.exec(["sort", "-n"], stdin="30\n4\n100\n").result()
    print(result.stdout.split())

    binary = bytes(range(256))  # any bytes are passed on unchanged
    result = sandbox.exec(["cat"], stdin=binary).result()
    print(result.stdout_bytes == binary)

    process = sandbox.exec(["python", "-c", CALCULATOR], stdin=True, timeout=30)
    answers = iter(process.stdout.lines())
    for question in ("6 7", "12 12"):
        process.stdin.write(question + "\n").result()
        print(f"{question} -> {next(answers)}")
    process.stdin.close().result()
    print("exit status", process.result().returncode)
