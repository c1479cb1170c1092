"""`python -m tests.run [GROUP ...]`: run groups of tests, and say what ran, for how long, and what was flaky.

A test that fails is a finding. After the last group at most three failed tests run once more, each alone: those
that then pass are printed as flaky with their first traceback, and fail the run only where a race is the test's
very subject. Nothing else is ever run twice.
"""

import argparse
import dataclasses
import functools
import os
import subprocess
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from tests.components import parsed
from tests.leftovers import LEFT
from tests.outcomes import VARIABLE, Outcome, read, skip_table

ROOT = Path(__file__).resolve().parents[1]
FILE = ROOT / "build" / "outcomes.jsonl"
RUN_ONCE = ("tests/core/", "tests/agent/", "tests/crash/", "tests/pool/")
"""A failure here is a race of ours, also where it passes alone: what load shows is what these tests are for."""
MOST_AGAIN = 3
_ALONE = "pytest.mark.alone"


@dataclass(frozen=True)
class Group:
    """Tests that are started together: those without the mark `alone` first, then those with it."""

    what: str
    paths: tuple[str, ...]
    left_out: tuple[str, ...] = ()
    processes: int = 3  # tests mostly wait: three processes fill two cores
    dist: str = "loadfile"
    environment: str = ""
    """The virtual environment below `.venv` with what these tests need, if it is not `.venv` itself."""
    options: tuple[str, ...] = ()
    required: str = ""
    """The component that must be there: SANDBOXKIT_REQUIRE_… is set to it."""
    beside: bool = False  # it runs beside the others: it mostly waits for other processes

    def python(self) -> Path:
        """Return the interpreter of the group's environment."""
        return ROOT / ".venv" / self.environment / "bin" / "python"

    def commands(self, nightly: bool) -> Iterator[list[str]]:
        """Yield the arguments of each start of pytest."""
        night = "" if nightly else " and not nightly"
        ignored = [f"--ignore={path}" for path in self.left_out]
        processes = ["-n", str(self.processes), "--dist", self.dist]
        # A process that tests/hangs.py ended is not replaced: the next one would get the same test.
        processes += ["--max-worker-restart", "0", "--no-loadscope-reorder"]
        yield [f"-mnot alone{night}", *processes, *self.paths, *ignored]
        if alone := sorted(self._files_alone()):
            yield [f"-malone{night}", *alone]

    def _files_alone(self) -> Iterator[str]:
        """Yield the files with the mark: to import all of them takes half a minute."""
        for path in self.paths:
            found = (ROOT / path).rglob("test_*.py") if (ROOT / path).is_dir() else [ROOT / path]
            for file in found:
                name = str(file.relative_to(ROOT))
                left_out = any(Path(name).is_relative_to(each) for each in self.left_out)
                if not left_out and _ALONE in file.read_text():
                    yield name


_CONTRACT = "tests/conformance/test_"
_GROUPS = {
    "vendors": Group(
        "E2B, Daytona and Modal at their emulators, and the service",
        (
            *(f"{_CONTRACT}{name}.py" for name in ("e2b", "daytona", "modal", "service")),
            *(f"tests/{name}" for name in ("e2b", "daytona", "modal", "hosted")),
            "tests/cli/test_doctor_live.py",
        ),
        processes=5,  # they wait for the emulators' answers
    ),
    # Its tests wait for each other: some stop the cluster's programs.
    "cluster": Group("Kubernetes", ("tests/kubernetes",), processes=1, beside=True),
    "cluster-contract": Group(
        "the contract on a cluster",
        (f"{_CONTRACT}kubernetes.py", f"{_CONTRACT}kubernetes_claims.py"),
        processes=2,
        dist="load",
        beside=True,
    ),
    "corpora": Group(
        "no cheat is accepted, no honest program refused, no hostile one excused",
        (
            "tests/rewards/programs/test_adversaries.py",
            *(
                f"tests/rewards/test_{name}.py"
                for name in (
                    "cheats",
                    "corpus",
                    "hostile_outputs",
                    "hostile_workspaces",
                    "outcomes",
                    "ended_agent",
                    "fairness",
                    "judge",
                    "service_time",
                    "shared",
                )
            ),
            "tests/swe/test_shared.py",
            "tests/swe/test_tasks.py",
        ),
    ),
    "reset": Group(
        "attacks on the next job of a sandbox; agents whose reset lacks a step",
        ("tests/reset",),
        dist="load",
    ),
    "neighbours": Group(
        "programs that use up what the kernel shares change no verdict on a neighbour",
        ("tests/neighbours",),
    ),
    "machines": Group(
        "other machines: containers, control groups of version 2, clients of Docker elsewhere",
        ("tests/machines",),
    ),
    "mutants": Group(
        "each check of the contract fails on a provider that is weakened on purpose",
        (f"{_CONTRACT}fake.py", f"{_CONTRACT}mutants.py"),
        dist="load",
    ),
    "trainer": Group(
        "the GRPO trainer", ("tests/grpo",), left_out=("tests/grpo/test_against_trl.py",)
    ),
    "trl": Group(
        "what TRL's trainers are given, and the pages about them",
        ("tests/trl", "tests/grpo/test_against_trl.py", "tests/rewards/programs/test_trainers.py"),
    ),
    "adapters": Group(
        "Inspect, the OpenAI Agents SDK, smolagents and deepagents",
        (
            "tests/inspect",
            "tests/openai_agents",
            "tests/smolagents/test_steps.py",
            "tests/deepagents/test_agent.py",
        ),
    ),
    "vllm": Group(
        "the vLLM engines",
        tuple(
            str(path.relative_to(ROOT))
            for path in sorted((ROOT / "tests/grpo").glob("test_vllm_*.py"))
        ),
        processes=2,
        environment="vllm",
        required="VLLM",
    ),
    "frameworks": Group(
        "verifiers and LangChain's standard tests",
        ("tests/deepagents/test_standard.py", "tests/verifiers"),
        processes=2,
        environment="frameworks",
        options=("-o", "asyncio_default_fixture_loop_scope=function"),
        required="FRAMEWORKS",
    ),
    "trainers": Group(
        "verl, OpenRLHF, SkyRL's gym",
        ("tests/trainers",),
        processes=2,
        environment="trainers",
        required="FRAMEWORKS",
    ),
    "openenv": Group(
        "OpenEnv", ("tests/openenv",), processes=2, environment="openenv", required="FRAMEWORKS"
    ),
    "harbor": Group(
        "Harbor", ("tests/harbor",), processes=2, environment="harbor", required="FRAMEWORKS"
    ),
}
_APART = list(_GROUPS)[:-5]
"""Groups whose files `make test` leaves out; what needs an environment of its own is skipped there by name."""
GROUPS = {
    "test": Group(
        "the suite without the groups below",
        ("tests/strangers/test_docker_images.py", "tests"),  # the longest file first
        left_out=tuple(path for name in _APART for path in _GROUPS[name].paths),
    ),
    **_GROUPS,
}
"""In the order in which they run."""


@dataclass
class Ran:
    """What a group's starts of pytest came to."""

    group: str
    seconds: float = 0.0
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    broken: list[str] = field(default_factory=list)
    """Starts that ended without an outcome for every test."""

    def failed(self) -> list[Outcome]:
        """Return the tests that failed."""
        return [each for each in self.outcomes.values() if each.result == "failed"]

    def row(self) -> tuple[str, ...]:
        """Return the group's row of the table."""
        results = [each.result for each in self.outcomes.values()]
        counts = (str(results.count(name)) for name in ("passed", "failed", "skipped"))
        return self.group, *counts, f"{self.seconds // 60:.0f}:{self.seconds % 60:02.0f}"


def pytest(group: Group, arguments: Sequence[str], file: Path) -> int:
    """Start pytest and return its exit status; its outcomes are added to `file`."""
    command = [str(group.python()), "-m", "pytest", "-q", *group.options, *arguments]
    environment = {**os.environ, VARIABLE: str(file)}
    if group.required:
        environment[f"SANDBOXKIT_REQUIRE_{group.required}"] = "1"
    return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode


def run(name: str, nightly: bool = False, only: Sequence[str] = ()) -> Ran:
    """Run a group, or only these paths of it, and return what it came to."""
    ran, group, start = Ran(name), GROUPS[name], time.monotonic()
    path = FILE.with_stem(f"{FILE.stem}-{name}")
    if only:
        group = dataclasses.replace(group, paths=tuple(only), left_out=())
    print(f"{time.strftime('%T')} {name}: {group.what}", flush=True)
    if not group.python().exists():
        ran.broken.append(f"there is no {group.python()}: `make test-{name}` makes it")
    else:
        for arguments in group.commands(nightly):
            path.write_text("")
            status = pytest(group, arguments, path)
            with path.open() as file:
                outcomes = read(file)
            # Status 1 is pytest's word for tests that failed, and 5 for none: all of a group may be `alone`.
            if status not in (0, 1, 5) or (status == 1) != any(
                each.result == "failed" for each in outcomes.values()
            ):
                ran.broken.append(f"pytest ended with {status}: pytest {' '.join(arguments)}")
            ran.outcomes |= outcomes
        if not ran.outcomes:
            ran.broken.append(f"{name} has no test")
    ran.seconds = time.monotonic() - start
    return ran


def again(all_ran: Collection[Ran]) -> dict[str, Outcome]:
    """Run the tests that failed once more, each alone, unless they are too many; return those that passed."""
    failed = [(ran, each) for ran in all_ran for each in ran.failed() if LEFT not in each.text]
    if len(failed) > MOST_AGAIN:
        return {}
    return {
        each.test: each
        for ran, each in failed
        if pytest(GROUPS[ran.group], ["-p", "no:cacheprovider", each.test], FILE) == 0
    }


def missing(all_ran: Collection[Ran]) -> list[Outcome]:
    """Return the tests that were skipped wherever they were collected."""
    outcomes = [each for ran in all_ran for each in ran.outcomes.values()]
    ran = {each.test for each in outcomes if each.result != "skipped"}
    files = {test.partition("::")[0] for test in ran}
    skipped = {each.test: each for each in outcomes if each.result == "skipped"}
    return [each for test, each in skipped.items() if test not in ran | files]


def report(
    all_ran: Collection[Ran], flaky: Mapping[str, Outcome], without: Collection[str] | None = None
) -> bool:
    """Print what ran, what was flaky, what was skipped and what failed; return whether all is well.

    A test that was skipped for want of a component is a failure, except for these components; None: none is.
    """
    print()
    rows = [("group", "passed", "failed", "skipped", "time"), *(ran.row() for ran in all_ran)]
    for name, *others in rows:
        print(f"{name:18}" + "".join(f"{each:>9}" for each in others))
    if flaky:
        print("\nflaky: failed, and passed alone")
        for test, first in flaky.items():
            print(f"  {test}\n" + "".join(f"    {line}\n" for line in first.text.splitlines()))
    skipped = missing(all_ran)
    if lines := list(skip_table(skipped)):
        print("\nskipped for want of a component", *lines, sep="\n")
    failures = [
        each.test
        for ran in all_ran
        for each in ran.failed()
        if each.test not in flaky or each.test.startswith(RUN_ONCE)
    ]
    failures += [line for ran in all_ran for line in ran.broken]
    if without is not None:
        lacks = ((each, parsed(each.text)) for each in skipped)
        failures += [f"{e.test}: {e.text}" for e, lack in lacks if lack and lack[0] not in without]
    if failures:
        print("\nfailed:", *failures, sep="\n  ")
    return not failures


def main(argv: Sequence[str] | None = None) -> int:
    """Run what the command line names; return 0 if all passed, else 1."""
    parser = argparse.ArgumentParser(prog="python -m tests.run", description=__doc__)
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=", ".join(GROUPS))
    parser.add_argument("--all", action="store_true", help="run every group")
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="PATH", help="of the group's, these"
    )
    parser.add_argument("--nightly", action="store_true", help="run what is marked nightly as well")
    parser.add_argument(
        "--required",
        nargs="*",
        metavar="COMPONENT",
        help="a test skipped for want of a component is a failure, except for these components",
    )
    given = parser.parse_args(argv)
    groups = list(GROUPS) if given.all else given.groups or ["test"]
    if unknown := set(groups) - set(GROUPS):
        parser.error(f"no group {', '.join(sorted(unknown))}; there are {', '.join(GROUPS)}")
    if unknown := {path for path in given.only if not (ROOT / path.partition("::")[0]).exists()}:
        parser.error(f"there is no {', '.join(sorted(unknown))}")
    FILE.parent.mkdir(exist_ok=True)
    with ThreadPoolExecutor(1) as others:
        start = functools.partial(run, nightly=given.nightly, only=given.only)
        beside = {name: others.submit(start, name) for name in groups if GROUPS[name].beside}
        all_ran = [beside[n].result() if n in beside else start(n) for n in groups]
    return 0 if report(all_ran, again(all_ran), given.required) else 1


if __name__ == "__main__":
    sys.exit(main())
