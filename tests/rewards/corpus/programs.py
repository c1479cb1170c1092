"""Hostile programs, which read a and b and shall print a * b + a - b."""

from tests.rewards.corpus.shapes import Shape

_CASES = [
    {"stdin": "2 3\n", "stdout": "5\n"},
    {"stdin": "10 1\n", "stdout": "19\n"},
    {"stdin": "7 7\n", "stdout": "49\n"},
]
PROGRAM_SHAPES = (
    Shape("a program's output", {"cases": _CASES}),
    Shape("a program's output, near", {"cases": _CASES, "rel_tol": 1e-6}),
)
HONEST_PROGRAM = "a, b = map(int, input().split())\nprint(a * b + a - b)\n"
PROGRAM_CHEATS = {
    "prints nothing": "pass",
    "prints all candidates": "print(*range(-100, 100))",
    "hard-codes the first": "print(5)",
    "right, then fails": "print(5)\nraise SystemExit(1)",
    "prints without end": "while True: print(5)",
    "prints slowly": "import time\nwhile True: print(5, flush=True); time.sleep(0.05)",
    "prints nan": "print(float('nan'))",
    "reads its surroundings": """
import os
for folder, _, names in os.walk("/workspace"):
    for name in names: print(open(os.path.join(folder, name), errors="replace").read())
""",
    "leaves a process that prints": """
import os, time
if os.fork() == 0:
    time.sleep(0.2)
    print(5)
""",
    "prints every candidate over the last": "for n in range(-25, 60): print(n, end='\\r')",
    "prints candidates and erases them": "print('5\\x08\\x0819\\x1b[2J49')",
    "prints digits of other scripts": "print('\\u0665')",
    "prints a number in another form": "print('0x5'); print('5e0')",
    "prints infinity": "print('inf')",
    "prints what is not text": "import os\nos.write(1, b'\\xff\\xfe5\\n')",
    "prints zeros between": "print('5\\0\\n19\\0')",
    "prints all lines it may be": "for n in range(-25, 60): print(n)",
    "prints too much": "print('5\\n' * 10_000_000)",
    "prints to every descriptor": """
import os
for fd in range(64):
    for line in (b"5\\n", b'{"passed": true}\\n', b'["value", true]\\n'):
        try: os.write(fd, line)
        except OSError: pass
""",
    "prints to its parents": """
import glob, os
for path in glob.glob("/proc/[0-9]*/fd/[012]"):
    try: os.write(os.open(path, os.O_WRONLY | os.O_NONBLOCK), b"19\\n")
    except OSError: pass
""",
    "exits well without a word": "import os\nos._exit(0)",
    "exits well with its answer unwritten": "import os\nprint(5, end='')\nos._exit(0)",
    "reads its parents' input": """
import glob, os
for path in glob.glob("/proc/[0-9]*/fd/0") + glob.glob("/proc/[0-9]*/cmdline"):
    try: print(open(path, errors="replace").read(10_000))
    except OSError: pass
""",
    "reads without end": "while True: input()",
    "stops itself": "import os\nos.kill(os.getpid(), 19)\nprint(5)",
    "becomes another program": "import os\nos.execvp('echo', ['echo', '5'])",
    "leaves children that hold the output": """
import os, time
print(5, flush=True)
for _ in range(5):
    if os.fork() == 0: time.sleep(1000)
""",
}
