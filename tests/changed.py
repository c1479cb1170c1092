"""`python -m tests.changed TARGET`: whether a part's files differ from those with which it last passed.

A part is a make target that takes minutes for what few files can break. `.ci/run` leaves it out where
the files are the same; `make nightly` always runs it. The exit status is SAME where they are the same,
0 where they differ, and 1 after an error. With `--record` the command writes that the part passed.
"""

import hashlib
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SAME = 3
RECORD = Path(__file__).with_name("passed.txt")
PARTS = {
    "test-vendors": (
        "integrations/serve",
        "providers/_hosted",
        "providers/daytona",
        "providers/e2b",
        "providers/modal",
        "providers/service",
        "sandboxkit/cli/_doctor_live.py",
        "sandboxkit/testing/conformance",
        "sandboxkit/testing/live",
        "tests/chaos",
        "tests/cli/test_doctor_live.py",
        "tests/conformance/conftest.py",
        "tests/conformance/hooks.py",
        "tests/conformance/test_daytona.py",
        "tests/conformance/test_e2b.py",
        "tests/conformance/test_modal.py",
        "tests/conformance/test_service.py",
        "tests/daytona",
        "tests/e2b",
        "tests/emulators",
        "tests/hosted",
        "tests/modal",
    ),
    "test-cluster": (
        "agent/keep.go",
        "agent/pause.go",
        "agent/restore.go",
        "deploy",
        "examples/serve",
        "providers/kubernetes",
        "scripts/kube",
        "scripts/kube.sh",
        "sandboxkit/testing/conformance",
        "tests/conformance/conftest.py",
        "tests/conformance/hooks.py",
        "tests/conformance/test_kubernetes.py",
        "tests/conformance/test_kubernetes_claims.py",
        "tests/kubernetes",
    ),
    "test-corpora": (
        "agent",
        "integrations/rewards",
        "integrations/swe",
        "providers/docker",
        "providers/local",
        "tests/rewards",
        "tests/swe",
    ),
    "test-reset": (
        "agent",
        "providers/docker",
        "providers/local",
        "tests/reset",
    ),
    "test-neighbours": (
        "agent",
        "integrations/rewards",
        "providers/docker",
        "providers/local",
        "tests/neighbours",
    ),
    "test-mutants": (
        "sandboxkit/testing",
        "tests/conformance",
    ),
    "test-trainer": (
        "examples/grpo",
        "integrations/_training",
        "integrations/grpo",
        "tests/grpo",
    ),
    "test-trl": (
        "docs/guides/environments.md",
        "docs/guides/trl-rewards.md",
        "examples/rl_training",
        "integrations/_tools",
        "integrations/_training",
        "integrations/grpo",
        "integrations/rewards",
        "integrations/swe",
        "integrations/trl",
        "tests/grpo/test_against_trl.py",
        "tests/rewards/programs/test_trainers.py",
        "tests/trl",
    ),
    "test-adapters": (
        "integrations/_option_fields.py",
        "integrations/deepagents",
        "integrations/inspect",
        "integrations/openai_agents",
        "integrations/smolagents",
        "tests/deepagents",
        "tests/inspect",
        "tests/openai_agents",
        "tests/smolagents",
    ),
    "test-vllm": (
        "integrations/grpo/engines",
        "scripts/vllm-cpu.sh",
        "tests/grpo/serving.py",
        "tests/grpo/test_vllm_engine.py",
        "tests/grpo/test_vllm_server.py",
    ),
    "test-frameworks": (
        "integrations/_extras.py",
        "integrations/_tools",
        "integrations/deepagents",
        "integrations/harbor",
        "integrations/trainers",
        "integrations/verifiers",
        "scripts/beside.sh",
        "scripts/newer.sh",
        "tests/deepagents",
        "tests/frameworks_here.py",
        "tests/harbor",
        "tests/trainers",
        "tests/verifiers",
    ),
}
"""The files and folders of each part. What else its tests use has tests that run each time: the contract is
checked with local and docker, and on a cluster, E2B and a service by what differs there."""


_APART = {"PROTOCOL.md"}
"""Files that no test of a part reads."""


def digest(paths: Iterable[str], root: Path = ROOT) -> str:
    """Return a digest of the files' names and content. Raises FileNotFoundError if a path is missing."""
    found = hashlib.sha256()
    for path in paths:
        for file in _files(root / path):
            content = hashlib.sha256(file.read_bytes()).hexdigest()
            found.update(f"{file.relative_to(root)} {content}\n".encode())
    return found.hexdigest()


def _files(path: Path) -> Iterator[Path]:
    if path.is_dir():
        yield from sorted(
            file
            for file in path.rglob("*")
            if file.is_file() and "__pycache__" not in file.parts and file.name not in _APART
        )
    else:
        yield path


def passed(text: str) -> dict[str, str]:
    """Return each part's digest from the text of the record, whose lines are a target and a digest."""
    found = dict[str, str]()
    for line in text.splitlines():
        if not line.startswith("#"):
            target, with_files = line.split()
            found[target] = with_files
    return found


def main(arguments: list[str]) -> int:
    """Compare or record one part; return the exit status. Raises SystemExit for unknown arguments."""
    *options, target = arguments or [""]
    if target not in PARTS or options not in ([], ["--record"]):
        raise SystemExit(f"usage: python -m tests.changed [--record] {'|'.join(PARTS)}")
    text, now = RECORD.read_text(), digest(PARTS[target])
    same = passed(text).get(target) == now
    if options:
        kept = [line for line in text.splitlines() if not line.startswith(f"{target} ")]
        RECORD.write_text("\n".join([*kept, f"{target} {now}"]) + "\n")
        return 0
    return SAME if same else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
