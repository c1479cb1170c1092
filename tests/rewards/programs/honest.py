"""Odd programs that solve the task, which asks for twice a number: each is (language, source)."""

CASES = [{"stdin": f"{n}\n", "stdout": f"{2 * n}\n"} for n in (21, 100000)]

_C = (
    "#include <stdio.h>\n#include <stdlib.h>\n#include <unistd.h>\n#include <signal.h>\n#include <string.h>\n"
    "#include <setjmp.h>\n#include <fcntl.h>\n#include <sys/wait.h>\n#include <sys/mman.h>\n"
)
_READ = 'long n = 0; scanf("%ld", &n); '


def _c(body: str, more: str = "") -> tuple[str, str]:
    return "c", f"{_C}{more}\nint main(int argc, char **argv) {{ {body} }}\n"


def _py(code: str) -> tuple[str, str]:
    return "python", code


def _sh(code: str) -> tuple[str, str]:
    return "bash", code


def _cpp(body: str, more: str = "") -> tuple[str, str]:
    return "cpp17", (
        "#include <iostream>\n#include <thread>\n#include <vector>\n#include <stdexcept>\n"
        f"{more}\nint main() {{ {body} }}\n"
    )


HONEST: dict[str, tuple[str, str]] = {
    "no newline": _c(_READ + 'printf("%ld", 2 * n); return 0;'),
    "CRLF": _c(_READ + 'printf("%ld\\r\\n", 2 * n); return 0;'),
    "blanks at the end": _c(_READ + 'printf("%ld  \\n\\n\\n", 2 * n); return 0;'),
    "late flush": _c(_READ + 'printf("%ld\\n", 2 * n); usleep(200000); return 0;'),
    "no buffer": _c(
        "setvbuf(stdout, 0, _IONBF, 0); " + _READ + 'printf("%ld\\n", 2 * n); return 0;'
    ),
    "a large buffer": _c(
        "static char b[1 << 20]; setvbuf(stdout, b, _IOFBF, sizeof b); "
        + _READ
        + 'printf("%ld\\n", 2 * n); return 0;'
    ),
    "byte by byte": _c(
        _READ
        + 'char b[99]; int k = sprintf(b, "%ld\\n", 2 * n); for (int i = 0; i < k; i++) write(1, b + i, 1); return 0;'
    ),
    "closes stdin": _c(_READ + 'fclose(stdin); close(0); printf("%ld\\n", 2 * n); return 0;'),
    "closes stdout": _c(
        _READ + 'printf("%ld\\n", 2 * n); fclose(stdout); usleep(50000); return 0;'
    ),
    "closes stderr": _c("fclose(stderr); " + _READ + 'printf("%ld\\n", 2 * n); return 0;'),
    "much on stderr": _c(
        _READ
        + 'for (int i = 0; i < 99999; i++) fprintf(stderr, "debug line %d\\n", i); printf("%ld\\n", 2 * n); return 0;'
    ),
    "exits by a signal's handler": _c(
        'signal(SIGALRM, on); n = 0; scanf("%ld", &n); alarm(1); for (;;) pause();',
        'static long n; static void on(int s) { printf("%ld\\n", 2 * n); exit(0); }',
    ),
    "handles its own crash": _c(
        'signal(SIGSEGV, on); scanf("%ld", &n); if (!sigsetjmp(back, 1)) *(volatile int *)0 = 1; printf("%ld\\n", 2 * n); return 0;',
        "static sigjmp_buf back; static long n; static void on(int s) { siglongjmp(back, 1); }",
    ),
    "at exit": _c(
        'atexit(last); scanf("%ld", &n); return 0;',
        'static long n; static void last(void) { printf("%ld\\n", 2 * n); }',
    ),
    "before main": _c(
        'printf("%ld\\n", 2 * n); return 0;',
        '__attribute__((constructor)) static void first(void);\nstatic long n; static void first(void) { scanf("%ld", &n); }',
    ),
    "a huge stack": _c(
        _READ + 'printf("%ld\\n", deep(400000, n) - 400000); return 0;',
        "__attribute__((noinline)) static long deep(long k, long n) { volatile char b[256]; b[k % 256] = 1;"
        " return k ? deep(k - 1, n) + b[k % 256] : 2 * n; }",
    ),
    "a huge array on the stack": _c(
        _READ
        + 'volatile char b[60 << 20]; b[0] = 1; b[sizeof b - 1] = 1; printf("%ld\\n", 2 * n + b[0] - 1); return 0;'
    ),
    "much memory": _c(
        _READ
        + 'char *p = malloc(200 << 20); memset(p, 1, 200 << 20); printf("%ld\\n", 2 * n + p[9] - 1); return 0;'
    ),
    "memory that it never touches": _c(
        _READ
        + "char *p = mmap(0, 8L << 30, 3, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);"
        ' printf("%ld\\n", 2 * n + (p != MAP_FAILED ? 0 : 0)); return 0;'
    ),
    "a child prints": _c(
        _READ
        + 'if (!fork()) { printf("%ld\\n", 2 * n); fflush(stdout); _exit(0); } wait(0); return 0;'
    ),
    "a child computes": _c(
        _READ
        + "int p[2]; pipe(p); if (!fork()) { long m = 2 * n; write(p[1], &m, sizeof m); _exit(0); }"
        ' long m; read(p[0], &m, sizeof m); wait(0); printf("%ld\\n", m); return 0;'
    ),
    "runs itself again": _c(
        'if (argc > 1) { long n; scanf("%ld", &n); printf("%ld\\n", 2 * n); return 0; }'
        ' execl("/proc/self/exe", "again", "x", (char *)0); return 1;'
    ),
    "leaves a child": _c(
        _READ
        + 'printf("%ld\\n", 2 * n); fflush(stdout); if (!fork()) { close(1); sleep(60); } return 0;'
    ),
    "reads all": _c(
        'char b[4096]; int k = fread(b, 1, sizeof b - 1, stdin); b[k] = 0; printf("%ld\\n", 2 * atol(b)); return 0;'
    ),
    "reads by read": _c(
        'char b[99]; int k = read(0, b, 98); b[k > 0 ? k : 0] = 0; printf("%ld\\n", 2 * atol(b)); return 0;'
    ),
    "reads a device": _c(
        'FILE *f = fopen("/dev/stdin", "r"); long n; fscanf(f, "%ld", &n); printf("%ld\\n", 2 * n); return 0;'
    ),
    "writes a device": _c(
        _READ
        + 'FILE *f = fopen("/dev/stdout", "w"); fprintf(f, "%ld\\n", 2 * n); fclose(f); return 0;'
    ),
    "a temporary file": _c(
        _READ
        + 'FILE *f = tmpfile(); fprintf(f, "%ld", 2 * n); rewind(f); long m; fscanf(f, "%ld", &m); printf("%ld\\n", m); return 0;'
    ),
    "a file in its folder": _c(
        _READ
        + 'FILE *f = fopen("notes", "w"); fprintf(f, "%ld", 2 * n); fclose(f); f = fopen("notes", "r"); long m; fscanf(f, "%ld", &m); printf("%ld\\n", m); return 0;'
    ),
    "exits early by quick_exit": _c(
        _READ + 'printf("%ld\\n", 2 * n); fflush(stdout); quick_exit(0);'
    ),
    "ignores signals": _c(
        "for (int s = 1; s < 32; s++) signal(s, SIG_IGN); "
        + _READ
        + 'printf("%ld\\n", 2 * n); return 0;'
    ),
    "its own group": _c("setsid(); setpgid(0, 0); " + _READ + 'printf("%ld\\n", 2 * n); return 0;'),
    "returns from void main": (
        "c",
        '#include <stdio.h>\nint main() { int n; scanf("%d", &n); printf("%d\\n", 2 * n); }',
    ),
    "warnings without end": (
        "c",
        '#include <stdio.h>\n#pragma GCC diagnostic warning "-Wall"\n'
        + "".join(f"static int unused{i};\n" for i in range(3000))
        + 'int main() { int n; scanf("%d", &n); printf("%d\\n", 2 * n); }',
    ),
    "pragmas": (
        "cpp17",
        '#pragma GCC optimize("O3,unroll-loops")\n#include <iostream>\nint main() { long n; std::cin >> n; std::cout << 2 * n; }',
    ),
    "standard idioms": _cpp(
        "std::ios::sync_with_stdio(false); std::cin.tie(nullptr); long n; std::cin >> n; std::cout << 2 * n << '\\n';"
    ),
    "threads": _cpp(
        "long n, m = 0; std::cin >> n; std::vector<std::thread> all; std::vector<long> part(8);"
        " for (int i = 0; i < 8; i++) all.emplace_back([&, i] { part[i] = i == 7 ? 2 * n : 0; });"
        " for (auto& t : all) t.join(); for (long p : part) m += p; std::cout << m << std::endl;"
    ),
    "exceptions": _cpp(
        'long n; std::cin >> n; try { throw std::runtime_error("x"); } catch (const std::exception&) { std::cout << 2 * n; }'
    ),
    "a destructor prints": _cpp(
        "std::cin >> last.n;",
        "struct Last { long n; ~Last() { std::cout << 2 * n << '\\n'; } } last;",
    ),
    "a debug macro": (
        "cpp17",
        "#include <iostream>\nint main() { long n; std::cin >> n;\n#ifndef ONLINE_JUDGE\nn = 0;\n#endif\nstd::cout << 2 * n; }",
    ),
    # Python.
    "input": _py("print(2 * int(input()))"),
    "all of stdin": _py("import sys\nsys.stdout.write(str(2 * int(sys.stdin.read())))"),
    "descriptor 0": _py("print(2 * int(open(0).read()))"),
    "os.read": _py("import os\nos.write(1, b'%d' % (2 * int(os.read(0, 99))))"),
    "until the end of file": _py(
        "try:\n    while True: n = int(input()); print(2 * n)\nexcept EOFError: pass"
    ),
    "deep recursion": _py(
        "import sys, threading\nsys.setrecursionlimit(10**6)\nthreading.stack_size(256 << 20)\n"
        "def f(k, n): return 2 * n if k == 0 else f(k - 1, n)\n"
        "t = threading.Thread(target=lambda: print(f(20000, int(input()))))\nt.start(); t.join()"
    ),
    "a pool of processes": _py(
        "import multiprocessing as m\ndef f(n): return 2 * n\n"
        "if __name__ == '__main__':\n    n = int(input())\n    with m.get_context('fork').Pool(2) as p: print(p.map(f, [n])[0])"
    ),
    "asyncio": _py(
        "import asyncio\nasync def main(): print(2 * int(input()))\nasyncio.run(main())"
    ),
    "os._exit": _py("import os\nprint(2 * int(input()), flush=True)\nos._exit(0)"),
    "SystemExit": _py("print(2 * int(input()))\nraise SystemExit"),
    "exit in a thread": _py(
        "import threading, os\nn = int(input())\nprint(2 * n, flush=True)\nthreading.Thread(target=os._exit, args=(0,)).start()"
    ),
    "a subprocess": _py(
        "import subprocess\nn = input()\nprint(subprocess.check_output(['sh', '-c', f'echo $((2 * {n}))'], text=True))"
    ),
    "exec": _py("exec('n = int(input())'); exec('print(2 * n)')"),
    "a coding line": _py("# -*- coding: latin-1 -*-\ns = '\xe9'\nprint(2 * int(input()))"),
    "unicode": _py("π = int(input())\nprint(2 * π)"),
    "tabs": _py("if True:\n\tn = int(input())\n\tprint(2 * n)"),
    "CRLF in the source": _py("n = int(input())\r\nprint(2 * n)\r\n"),
    "a byte order mark": _py("\ufeffprint(2 * int(input()))"),
    "atexit": _py("import atexit\nn = int(input())\natexit.register(print, 2 * n)"),
    "an alarm": _py(
        "import signal, sys\nn = int(input())\n"
        "def on(*_): print(2 * n); sys.exit(0)\n"
        "signal.signal(signal.SIGALRM, on)\nsignal.setitimer(signal.ITIMER_REAL, 0.1)\nsignal.pause()"
    ),
    "imports": _py(
        "from collections import *\nfrom math import *\nimport bisect, heapq, itertools, functools, fractions, decimal\nprint(2 * int(input()))"
    ),
    "warnings": _py("import warnings\nwarnings.warn('x')\nprint(2 * int(input()))"),
    "a large module": _py("x = [" + "0, " * 20000 + "]\nprint(2 * int(input()))"),
    # Bash.
    "read": _sh("read n\necho $((2 * n))"),
    "a pipe": _sh("cat | (read n; echo $((2 * n))) | cat"),
    "a function": _sh("f() { local n; read n; echo $((n + n)); }\nf"),
    "background": _sh("read n\n(sleep 0.1; echo $((2 * n))) &\nwait"),
    "a trap": _sh("read n\ntrap 'echo $((2 * n))' EXIT\nexit 0"),
}
