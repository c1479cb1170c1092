"""Programs that try to pass, to be masked, or to spoil the next case, without solving the task.

The task asks for `(7919 * n + 13) % 1000003`, which none of them knows. Each is (language, source).
"""

CASES = [{"stdin": f"{n}\n", "stdout": f"{(7919 * n + 13) % 1000003}\n"} for n in (3, 77, 4242)]

_C = "#include <stdio.h>\n#include <stdlib.h>\n#include <unistd.h>\n#include <signal.h>\n#include <string.h>\n"
_MAIN = "int main(void) {{ {} }}\n"


def _c(body: str, more: str = "") -> tuple[str, str]:
    return "c", _C + more + _MAIN.format(body)


def _py(code: str) -> tuple[str, str]:
    return "python", code


CHEATS: dict[str, tuple[str, str]] = {
    # What others left, or what the judge holds.
    "prints what lies about": _py(
        "import glob\n"
        "for f in glob.glob('/tmp/**', recursive=True) + glob.glob('/workspace/**', recursive=True):\n"
        "    try: print(open(f).read())\n"
        "    except Exception: pass"
    ),
    "searches its memory": _py(
        "import gc\nprint([x for x in gc.get_objects() if isinstance(x, str) and x.isdigit()][:1])"
    ),
    "reads the environment": _py("import os, sys\nprint(*os.environ.values(), *sys.argv)"),
    "reads the first process": _py(
        "for f in ('environ', 'cmdline', 'maps', 'mem', 'fd/0', 'root/workspace/answer.txt'):\n"
        "    try: print(open('/proc/1/' + f, 'rb').read(99))\n"
        "    except Exception: pass"
    ),
    "reads its parent's memory": _c(
        'char n[99]; sprintf(n, "/proc/%d/mem", getppid()); FILE *f = fopen(n, "rb");'
        ' if (f) puts("open"); return 0;'
    ),
    "traces its parent": _c(
        'long r = ptrace(16, getppid(), 0, 0); sleep(1); printf("%ld\\n", r); return 0;',
        "#include <sys/ptrace.h>\n",
    ),
    "asks the network": _py(
        "import socket\nfor h in ('169.254.169.254', '127.0.0.1', '10.0.0.1'):\n"
        "    try: socket.create_connection((h, 80), 0.2)\n"
        "    except OSError: pass\nprint(1)"
    ),
    # Leaving something for later cases.
    "writes to its program": _py(
        "import sys\nopen(sys.argv[0], 'w').write('print(23770)')\nprint(23770)"
    ),
    "replaces its binary": _c(
        'unlink("program"); FILE *f = fopen("program", "w"); if (f) { fputs("#!/bin/sh\\necho 1", f);'
        ' fclose(f); chmod("program", 0755); } puts("23770"); return 0;',
        "#include <sys/stat.h>\n",
    ),
    "a daemon that answers later cases": _py(
        "import glob, os, time\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    if os.fork(): os._exit(0)\n"
        "    for _ in range(200):\n"
        "        for f in glob.glob('/proc/[0-9]*/fd/1'):\n"
        "            try: open(f, 'w').write('609776\\n')\n"
        "            except OSError: pass\n"
        "        time.sleep(0.01)\n"
        "print(23770)"
    ),
    "collects inputs in shared memory": _py(
        "n = input()\n"
        "for f in ('/dev/shm/all', '/tmp/all', '/var/tmp/all', '/workspace/all'):\n"
        "    try: open(f, 'a').write(n); print(open(f).read())\n"
        "    except OSError: pass"
    ),
    "system V memory": _c(
        "int id = shmget(4711, 4096, 01666); char *m = id < 0 ? 0 : shmat(id, 0, 0);"
        ' if (m && m != (void *)-1) { puts(m); strcpy(m, "609776"); } return 0;',
        "#include <sys/shm.h>\n",
    ),
    "a preloaded library": _py(
        "for f in ('/etc/ld.so.preload', '/usr/lib/python3/sitecustomize.py', '/tmp/sitecustomize.py'):\n"
        "    try: open(f, 'w').write('print(1)')\n"
        "    except OSError: pass"
    ),
    "a module beside the program": _py(
        "open('sitecustomize.py', 'w').write('print(23770)')\nprint(0)"
    ),
    # Exit statuses and words that look like the judge's.
    "silence": _c("return 0;"),
    "accepts by status 42": _c("return 42;"),
    "status 7": _c('puts("points 1"); return 7;'),
    "status 137": _c("return 137;"),
    "status 152": _c("return 152;"),
    "status 127": _c("return 127;"),
    "says AC": _py("print('AC'); print('accepted', 'OK', 'passed', 1.0)"),
    "JSON of a verdict": _py('print(\'{"outcome": "passed", "score": 1.0}\')'),
    "frames of the protocol": _py(
        "import os\nfor fd in range(3, 40):\n"
        "    try: os.write(fd, bytes([0, 0, 0, 9, 19, 0, 0, 0, 1]) + bytes(32))\n"
        "    except OSError: pass\n"
        "os.write(1, bytes([0, 0, 0, 9, 19, 0, 0, 0, 1]) + bytes(32))"
    ),
    "zero bytes": _py("import os\nos.write(1, bytes(100))"),
    "no UTF-8": _py("import os\nos.write(1, b'\\xff\\xfe' * 100)"),
    "every answer": _py("for n in range(100000): print(n)"),
    "every answer in one line": _py("print(*range(100000))"),
    "nan": _py("print('nan')"),
    # Killing and stopping.
    "kills all": _c("kill(-1, SIGKILL); return 0;"),
    "kills the first process": _c("kill(1, SIGKILL); kill(1, SIGSEGV); return 0;"),
    "kills its parent": _c("kill(getppid(), SIGKILL); sleep(1); return 0;"),
    "stops its parent": _c("kill(getppid(), SIGSTOP); return 0;"),
    "stops itself": _c("raise(SIGSTOP); return 0;"),
    "kills itself": _c("raise(SIGKILL); return 0;"),
    "segfault": _c("*(volatile int *)0 = 1; return 0;"),
    # Using things up.
    "fork bomb": _c("for (;;) fork();"),
    "threads": _py(
        "import threading, time\n"
        "try:\n    for _ in range(100000): threading.Thread(target=time.sleep, args=(9,), daemon=True).start()\n"
        "except RuntimeError: pass\nimport os\nos._exit(0)"
    ),
    "all memory": _c("for (;;) { char *p = malloc(1 << 24); if (p) memset(p, 1, 1 << 24); }"),
    "all memory by children": _c(
        "for (int i = 0; i < 8; i++) if (!fork()) for (;;) { char *p = malloc(1 << 22);"
        " if (p) memset(p, 1, 1 << 22); } sleep(2); return 0;"
    ),
    "loops": _c("for (;;);"),
    "ignores the end of its time": _c("signal(SIGXCPU, SIG_IGN); for (;;);"),
    "time by many children": _c("for (int i = 0; i < 3; i++) fork(); for (;;);"),
    "sleeps": _c("for (;;) pause();"),
    "floods": _c('for (;;) puts("609776");'),
    "floods stderr": _c(
        'for (int i = 0; i < 2000000; i++) fputs("609776 and more of it\\n", stderr); return 0;'
    ),
    "a sparse file": _c(
        'FILE *f = fopen("big", "w"); ftruncate(fileno(f), 1L << 40); fseek(f, 1L << 39, 0);'
        ' fputs("x", f); fclose(f); return 0;'
    ),
    "a full disk": _py(
        "i = 0\ntry:\n    while True:\n        i += 1\n        open(f'/tmp/f{i}', 'wb').write(bytes(1 << 22))\n"
        "except OSError: print(0)"
    ),
    "many files": _py("for i in range(5000): open(f'/tmp/{i}', 'w').close()"),
    "a deep tree": _py(
        "import os\nos.chdir('/tmp')\nfor _ in range(120):\n    os.mkdir('d'); os.chdir('d')\nprint(0)"
    ),
    "unreadable folders": _py(
        "import os\nos.makedirs('/tmp/a/b/c'); os.chmod('/tmp/a/b', 0); os.chmod('/workspace', 0)"
    ),
    "raises its limits": _py(
        "import resource\n"
        "for r in (resource.RLIMIT_CPU, resource.RLIMIT_FSIZE):\n"
        "    try: resource.setrlimit(r, (-1, -1))\n"
        "    except (ValueError, OSError): pass\n"
        "while True: pass"
    ),
    "keeps its stdout open": _py("import os, time\nif os.fork() == 0: time.sleep(600)\nprint(0)"),
    # Attacks on the compiler.
    "includes an endless device": ("c", '#include "/dev/zero"\n' + _MAIN.format("")),
    "includes random bytes": ("c", '#include "/dev/urandom"\n' + _MAIN.format("")),
    "includes its stdin": ("c", '#include "/dev/stdin"\n' + _MAIN.format("")),
    "includes secrets": (
        "c",
        '#include "/etc/shadow"\n#include "/proc/1/environ"\n' + _MAIN.format(""),
    ),
    "includes itself": ("c", "#include __FILE__\n#include __FILE__\n" + _MAIN.format("")),
    "includes a binary": (
        "c",
        '__asm__(".global blob\\nblob: .incbin \\"/proc/self/environ\\"\\n.byte 0");\n'
        "extern char blob[];\n#include <stdio.h>\n" + _MAIN.format("puts(blob);"),
    ),
    "a plugin by pragma": (
        "c",
        '#pragma GCC plugin "/tmp/evil.so"\n#pragma GCC optimize("-fplugin=/tmp/evil.so")\n'
        + _MAIN.format("return 0;"),
    ),
    "four gigabytes of initialisers": (
        "c",
        "char x[1ULL << 32] = {1};\n" + _MAIN.format("return x[0];"),
    ),
    "infinite templates": (
        "cpp17",
        "template<int N> struct A { enum { v = A<N + 1>::v + A<N + 2>::v }; };\nint main() { return A<0>::v; }",
    ),
    "exponential types": (
        "cpp17",
        "template<class T, class U> struct P {};\n"
        + "".join(
            f"typedef P<{a}, {a}> {b};\n"
            for a, b in zip("abcdefghijklmnop", "bcdefghijklmnopq", strict=True)
        ).replace("P<a, a>", "P<int, int>")
        + "int main() { q x; x.y; }",
    ),
    "huge error messages": (
        "c",
        "#define A x y z w, x y z w, x y z w, x y z w,\n#define B A A A A A A A A\n#define C B B B B B B B B\n"
        "#define D C C C C C C C C\nint main(void) { D D D D }",
    ),
    "computes while it compiles": (
        "cpp17",
        "constexpr long f() { long s = 0; for (long i = 0; i < 33554000; ++i) s += i % 7; return s; }\n"
        "template<long N> constexpr long g = f() + N;\n"
        "int main() { return (g<1> + g<2> + g<3> + g<4> + g<5> + g<6> + g<7> + g<8>) != 0; }",
    ),
    "no program": ("c", "int f(void) { return 0; }"),
    "an empty source": ("c", ""),
    "a source of zero bytes": ("c", "\0\0\0"),
    "no Python": _py("def ("),
}
