"""A table of programming languages: how programs in each are compiled and run."""

import dataclasses
import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from sandboxkit import ConfigurationError

_FILE = re.compile(r"[A-Za-z0-9_{}][A-Za-z0-9_.{}-]*")


@dataclass(frozen=True, slots=True)
class Language:
    """How programs of one language are compiled and run, in the folder that holds the source.

    File names and commands may contain `{name}`, the program's name (see `named`), and `{memory}`, its
    memory in MiB. Raises ConfigurationError for an invalid value.
    """

    name: str
    source: str
    """The name of the source file, such as "main.cpp"."""
    run: tuple[str, ...]
    """The command that runs the program, such as ("./program",)."""
    compile: tuple[str, ...] = ()
    """The command that compiles a program; empty for a language whose source is run directly."""
    program: str = ""
    """The one file that `compile` writes and `run` needs, such as "program"."""
    packages: tuple[str, ...] = ()
    """The Debian packages of the compiler and the run time."""
    other_names: tuple[str, ...] = ()
    """Other names of the language that a task may use."""
    time_factor: float = 1.0
    """Factor for a task's time limit, because authors choose limits for native programs."""
    memory_extra_mb: int = 0
    """Memory in MiB that the run time itself needs; it is added to a task's limit."""
    compile_memory_mb: int = 1024
    """Memory in MiB of the sandbox that compiles."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Environment variables of the compiler and the program."""
    named: str = ""
    """A regular expression whose first group in the source is the program's name, such as the name of
    Java's public class. Without a match the name is "Main"."""
    needs: tuple[str, ...] = ()
    """Commands that must be installed; default: the first words of `compile` and `run`."""
    version: str = "--version"
    """The option with which the first of `tools` tells its version."""

    def __post_init__(self) -> None:
        for name in ("source", "program"):
            value = getattr(self, name)
            if (value or name == "source") and not _FILE.fullmatch(value):
                raise ConfigurationError(
                    f"{name}={value!r} of the language {self.name!r} is not a plain file name, such as "
                    "'main.c'"
                )
        for name in ("run", "compile", "packages", "other_names"):
            value = getattr(self, name)
            if not isinstance(value, tuple) or not all(isinstance(each, str) for each in value):
                raise ConfigurationError(
                    f"{name}={value!r} of the language {self.name!r} is not a tuple of words, such as "
                    "('./program',)"
                )
        if not self.run or bool(self.compile) != bool(self.program):
            raise ConfigurationError(
                f"the language {self.name!r} needs run=, and either both compile= and program= or neither"
            )
        if self.time_factor <= 0 or self.memory_extra_mb < 0 or self.compile_memory_mb <= 0:
            raise ConfigurationError(
                f"the language {self.name!r}: time_factor and compile_memory_mb are positive, "
                "memory_extra_mb >= 0"
            )

    @property
    def fences(self) -> tuple[str, ...]:
        """Info strings of fenced code blocks in this language, such as "cpp" and "c++"."""
        plain = self.name.rstrip("0123456789")
        also = {"cpp": ("c++", "cc", "cxx"), "javascript": ("mjs",)}.get(plain, ())
        return tuple(dict.fromkeys((self.name, plain, *self.other_names, *also)))

    @property
    def tools(self) -> tuple[str, ...]:
        """Commands that must be installed, such as "g++", including those in a script for `sh -c`."""
        found: list[str] = list(self.needs)
        for argv in () if self.needs else (self.compile, self.run):
            lines = re.split(r"&&|\|\||;", argv[2]) if argv[:2] == ("sh", "-c") else argv[:1]
            found += [line.split()[0] for line in lines if line.split()]
        return tuple(
            dict.fromkeys(
                each for each in found if re.fullmatch(r"[\w.+-]+", each) and each[0] != "."
            )
        )

    def bound(self, code: str, memory_mb: int) -> "Language":
        """Return a copy with `{name}`, found in the source `code`, and `{memory}` replaced by values."""
        found = re.search(self.named, code, re.ASCII) if self.named else None
        words = {"{name}": found[1] if found else "Main", "{memory}": str(memory_mb)}

        def filled(text: str) -> str:
            for word, value in words.items():
                text = text.replace(word, value)
            return text

        return dataclasses.replace(
            self,
            source=filled(self.source),
            program=filled(self.program),
            run=tuple(map(filled, self.run)),
            compile=tuple(map(filled, self.compile)),
        )


_JVM = ("-Xmx{memory}m", "-Xss256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
_JAVAC = "javac -J-XX:+UseSerialGC -J-XX:TieredStopAtLevel=1 -nowarn -encoding UTF-8 -d classes"
_JAVA = f"""
if ! said=$({_JAVAC} {{name}}.java 2>&1); then
  public=$(echo "$said" | sed -n 's/.*class \\(.*\\) is public, should be declared in a file named.*/\\1/p' | head -n 1)
  [ -n "$public" ] && mv {{name}}.java "$public.java" && said=$({_JAVAC} "$public.java" 2>&1) || {{ echo "$said" >&2; exit 1; }}
fi
main=$(javap -J-XX:TieredStopAtLevel=1 $(find classes -name '*.class') | awk '
  /^([^ ].* )?(class|interface) / {{ sub(/^([^ ].* )?(class|interface) /, ""); sub(/[ <{{].*/, ""); name = $0 }}
  /static.* void main\\(java.lang.String(\\[\\]|\\.\\.\\.)\\)/ {{ if (!found || name == "{{name}}") found = name }}
  END {{ print found }}')
[ -n "$main" ] || {{ echo "no class has a method main" >&2; exit 1; }}
jar -J-XX:+UseSerialGC --create --file program.jar --main-class "$main" -C classes .
"""
_CLASS = r"\bpublic\s+(?:(?:final|abstract|strictfp)\s+)*class\s+([A-Za-z_]\w{0,99})"
_C_FLAGS = ("-O2", "-pipe", "-s", "-DONLINE_JUDGE")
# To load the C++ library takes longer than many a case. Judges link it into the program.
_CPP_FLAGS = (*_C_FLAGS, "-static-libstdc++", "-static-libgcc", "-Wl,--gc-sections")

LANGUAGES: tuple[Language, ...] = (
    Language(
        "python",
        "main.py",
        ("python3", "main.py"),
        packages=("python3", "python3-numpy", "python3-sortedcontainers"),
        other_names=("python3", "py", "py3"),
        time_factor=5,
        memory_extra_mb=32,
    ),
    Language(
        "pypy",
        "main.py",
        ("pypy3", "main.py"),
        packages=("pypy3",),
        other_names=("pypy3",),
        time_factor=2,
        memory_extra_mb=128,
    ),
    Language(
        "c",
        "main.c",
        ("./program",),
        ("gcc", "-std=gnu17", *_C_FLAGS, "-o", "program", "main.c", "-lm"),
        "program",
        packages=("gcc", "libc6-dev"),
    ),
    Language(
        "cpp17",
        "main.cpp",
        ("./program",),
        ("g++", "-std=gnu++17", *_CPP_FLAGS, "-o", "program", "main.cpp", "-pthread"),
        "program",
        packages=("g++",),
        other_names=("cpp", "c++", "c++17"),
    ),
    Language(
        "cpp20",
        "main.cpp",
        ("./program",),
        ("g++", "-std=gnu++20", *_CPP_FLAGS, "-o", "program", "main.cpp", "-pthread"),
        "program",
        packages=("g++",),
        other_names=("c++20",),
    ),
    Language(
        "cpp23",
        "main.cpp",
        ("./program",),
        ("g++", "-std=gnu++23", *_CPP_FLAGS, "-o", "program", "main.cpp", "-pthread"),
        "program",
        packages=("g++",),
        other_names=("c++23",),
    ),
    Language(
        "java",
        "{name}.java",
        ("java", *_JVM, "-jar", "program.jar"),
        ("sh", "-c", _JAVA),
        "program.jar",
        packages=("default-jdk-headless",),
        needs=("javac", "javap", "jar", "java"),
        time_factor=2,
        memory_extra_mb=512,
        named=_CLASS,
    ),
    Language(
        "kotlin",
        "main.kt",
        ("java", *_JVM, "-jar", "program.jar"),
        ("kotlinc", "main.kt", "-include-runtime", "-d", "program.jar"),
        "program.jar",
        packages=("kotlin", "default-jdk-headless"),
        version="-version",
        other_names=("kt",),
        time_factor=2,
        memory_extra_mb=512,
        compile_memory_mb=2048,
    ),
    Language(
        "csharp",
        "main.cs",
        ("mono", "program.exe"),
        ("mcs", "-optimize+", "-nologo", "-r:System.Numerics.dll", "-out:program.exe", "main.cs"),
        "program.exe",
        packages=("mono-mcs", "mono-runtime"),
        other_names=("c#", "cs", "mono"),
        time_factor=2,
        memory_extra_mb=128,
    ),
    Language(
        "go",
        "main.go",
        ("./program",),
        ("go", "build", "-ldflags=-s -w", "-o", "program", "main.go"),
        "program",
        packages=("golang-go",),
        version="version",
        other_names=("golang",),
        memory_extra_mb=64,
        compile_memory_mb=2048,
        env={"GOCACHE": "/tmp/go-cache", "GO111MODULE": "off", "GOFLAGS": "-p=2", "GOPROXY": "off"},
    ),
    Language(
        "rust",
        "main.rs",
        ("./program",),
        ("rustc", "--edition=2021", "-O", "-Cstrip=symbols", "-o", "program", "main.rs"),
        "program",
        packages=("rustc",),
        other_names=("rs",),
    ),
    Language(
        "javascript",
        "main.js",
        ("node", "--stack-size=60000", "main.js"),
        packages=("nodejs",),
        other_names=("js", "node", "nodejs"),
        time_factor=2,
        memory_extra_mb=256,
    ),
    Language(
        "typescript",
        "main.ts",
        ("node", "--stack-size=60000", "main.js"),
        # Status 2: tsc wrote the program despite type errors, for example for node's own functions.
        (
            "sh",
            "-c",
            "tsc --target es2020 --module commonjs main.ts; end=$?; [ $end -eq 2 ] || exit $end",
        ),
        "main.js",
        packages=("nodejs", "node-typescript"),
        other_names=("ts",),
        time_factor=2,
        memory_extra_mb=256,
    ),
    Language(
        "ruby",
        "main.rb",
        ("ruby", "main.rb"),
        packages=("ruby",),
        other_names=("rb",),
        time_factor=5,
        memory_extra_mb=64,
    ),
    Language(
        "haskell",
        "main.hs",
        ("./program",),
        ("ghc", "-O1", "-v0", "-outputdir", "/tmp/ghc", "-o", "program", "main.hs"),
        "program",
        packages=("ghc", "libghc-vector-dev"),
        other_names=("hs",),
        time_factor=2,
        memory_extra_mb=32,
        compile_memory_mb=2048,
    ),
    Language(
        "ocaml",
        "main.ml",
        ("./program",),
        ("ocamlopt", "-O3", "-o", "program", "unix.cmxa", "str.cmxa", "main.ml"),
        "program",
        packages=("ocaml-nox",),
        other_names=("ml",),
    ),
    Language(
        "perl",
        "main.pl",
        ("perl", "main.pl"),
        packages=("perl",),
        other_names=("pl",),
        time_factor=5,
        memory_extra_mb=32,
    ),
    Language(
        "php",
        "main.php",
        ("php", "-d", "memory_limit=-1", "main.php"),
        packages=("php-cli",),
        time_factor=3,
        memory_extra_mb=64,
    ),
    Language(
        "lua",
        "main.lua",
        ("lua5.4", "main.lua"),
        packages=("lua5.4",),
        time_factor=5,
        memory_extra_mb=32,
        version="-v",
    ),
    Language(
        "pascal",
        "main.pas",
        ("./program",),
        ("fpc", "-O2", "-v0", "-oprogram", "main.pas"),
        "program",
        packages=("fp-compiler", "fp-units-rtl"),
        other_names=("pas", "delphi", "fpc"),
        version="-iV",
    ),
    Language(
        "r",
        "main.r",
        ("Rscript", "main.r"),
        packages=("r-base-core",),
        time_factor=5,
        memory_extra_mb=128,
    ),
    Language(
        "scala",
        "main.scala",
        ("java", *_JVM, "-cp", "/usr/share/java/scala-library.jar:program.jar", "{name}"),
        ("scalac", "-nowarn", "-d", "program.jar", "main.scala"),
        "program.jar",
        packages=("scala", "default-jdk-headless"),
        time_factor=2,
        memory_extra_mb=512,
        compile_memory_mb=2048,
        named=r"\bobject\s+([A-Za-z_]\w{0,99})",
        version="-version",
    ),
    Language(
        "bash",
        "main.sh",
        ("bash", "main.sh"),
        packages=("bash",),
        other_names=("sh", "shell"),
        time_factor=5,
    ),
)
"""The built-in languages, with the commands of Debian's packages."""


def language_of(name: str | Language) -> Language:
    """Return the built-in language with this name; a Language is returned unchanged.

    Raises ConfigurationError for an unknown name; the message suggests the nearest known one.
    """
    if isinstance(name, Language):
        return name
    known = {
        each: language for language in LANGUAGES for each in (language.name, *language.other_names)
    }
    if not isinstance(name, str):
        raise ConfigurationError(
            f"language={name!r} is a {type(name).__name__}: give a name such as 'cpp17', or a Language"
        )
    found = known.get(name.strip().lower())
    if found is None:
        close = difflib.get_close_matches(name.strip().lower(), known, 1, 0.4)
        nearest = f"did you mean {close[0]!r}? " if close else ""
        names = ", ".join(each.name for each in LANGUAGES)
        raise ConfigurationError(
            f"unknown language {name!r}: {nearest}There are {names}; for another one give a Language"
        )
    return found


def packages_of(languages: tuple[Language, ...]) -> list[str]:
    """Return the Debian packages of these languages, each once and sorted."""
    return sorted({package for language in languages for package in language.packages})
