"""Checkers and interactors with testlib's exit codes, written without testlib itself."""

from sandboxkit.integrations.rewards.programs import JudgeProgram

_HEADER = """\
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
enum { _ok = 0, _wa = 1, _pe = 2, _fail = 3 };
[[noreturn]] inline void quit(int status, const char *message) {
    fprintf(stderr, "%s\\n", message);
    exit(status);
}
"""
CPP_CHECKER = JudgeProgram(
    """\
#include "little.h"
// Any pair of positive numbers whose sum is the input.
int main(int argc, char **argv) {
    std::ifstream in(argv[1]), out(argv[2]), ans(argv[3]);
    long long n, a, b;
    if (!(in >> n)) quit(_fail, "no input");
    if (!(out >> a >> b)) quit(_pe, "two numbers expected");
    if (a < 1 || b < 1 || a + b != n) quit(_wa, "not a sum");
    quit(_ok, "ok");
}
""",
    {"little.h": _HEADER},
)
CHECKER = JudgeProgram(
    """\
import os, sys
def quit(status, message):
    print(message, file=sys.stderr)
    os._exit(status)
n = int(open(sys.argv[1]).read())
words = open(sys.argv[2]).read().split()
if words[:1] == ["crash"]: os.abort()
if words[:1] == ["better"]: quit(3, "FAIL the jury is wrong")
if words[:1] == ["half"]: quit(7, "points 0.5 half of it")
if words[:1] == ["loop"]:
    while True: pass
if len(words) != 2: quit(2, "two numbers expected")
a, b = map(int, words)
quit(0 if a > 0 and b > 0 and a + b == n else 1, "checked")
""",
    language="python",
)
BROKEN_CHECKER = JudgeProgram("import os; os.abort()", language="python")
INTERACTOR = JudgeProgram(
    """\
import os, sys
def quit(status, message):
    print(message, file=sys.stderr)
    os._exit(status)
secret = int(open(sys.argv[1]).read())
for turn in range(12):
    line = sys.stdin.readline()
    if not line: quit(8, "unexpected end of the submission")
    words = line.split()
    if len(words) != 2 or words[0] not in "?!": quit(2, "no question")
    if words[1] == "crash": os.abort()
    if words[1] == "jury": quit(3, "FAIL bad data")
    n = int(words[1])
    if words[0] == "!":
        open(sys.argv[2], "w").write(str(turn))
        quit(0 if n == secret else 1, f"{turn} questions")
    print("<" if secret < n else ">" if secret > n else "=", flush=True)
quit(1, "too many questions")
""",
    language="python",
)
"""Guess a number below 1000 in eleven questions: `? n` is answered, `! n` ends the game."""
