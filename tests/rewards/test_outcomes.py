"""Whatever a submission does to its sandbox while it is graded, it is scored: never masked, never
an exception."""

import pytest

from sandboxkit.integrations.rewards import HostCompare, Limits, Outcome
from tests.docker_here import require_docker
from tests.rewards.conftest import grade_all

pytestmark = pytest.mark.timeout(280)

PRELUDE = """
import contextlib, ctypes, glob, os, resource, signal, socket, sys, threading, time
libc = ctypes.CDLL(None, use_errno=True)
def child(work):
    if not os.fork():
        try: work()
        finally: os._exit(0)
"""

# Each is what the function does when it is called.
HOSTILE = {
    "kills its reaper": "os.kill(os.getppid(), 9)",
    "kills all": "os.kill(-1, 9)",
    "stops its reaper for ever": """
        for _ in range(8): child(lambda: [os.kill(p, 19) for p in iter(os.getppid, 0)])
        time.sleep(1)""",
    "stops everything it can": """
        for pid in range(2, 400):
            with contextlib.suppress(OSError): pid != os.getpid() and os.kill(pid, 19)
        os.kill(os.getpid(), 19)""",
    "leaves the agent no open files": """
        for pid in range(1, 60):
            with contextlib.suppress(OSError, ValueError):
                resource.prlimit(pid, resource.RLIMIT_NOFILE, (0, 0))""",
    "leaves the agent no processor time": """
        for pid in range(1, 60):
            with contextlib.suppress(OSError, ValueError):
                resource.prlimit(pid, resource.RLIMIT_CPU, (0, 0))
        while True: pass""",
    "leaves the agent no memory": """
        for pid in range(1, 60):
            with contextlib.suppress(OSError, ValueError):
                resource.prlimit(pid, resource.RLIMIT_AS, (0, 0))
                resource.prlimit(pid, resource.RLIMIT_DATA, (0, 0))""",
    "signals the agent without end": """
        def flood():
            while True:
                for number in range(34, 65):
                    with contextlib.suppress(OSError): os.kill(1, number)
        for _ in range(20): child(flood)
        flood()""",
    "forks without end": """
        while True:
            with contextlib.suppress(OSError): os.fork()""",
    "forks and exits without end": """
        def churn():
            while True:
                with contextlib.suppress(OSError):
                    if not os.fork(): os._exit(0)
        for _ in range(10): child(churn)
        churn()""",
    "has all the threads": """
        def idle(): time.sleep(1000)
        while True:
            try: threading.Thread(target=idle, daemon=True).start()
            except RuntimeError: time.sleep(0.01)""",
    "has many small processes at the memory limit": """
        def hold():
            keep = bytearray(os.urandom(1 << 20)); time.sleep(1000)
        while True:
            with contextlib.suppress(OSError): child(hold)""",
    "thrashes at the memory limit": """
        os.makedirs("/tmp/t", exist_ok=True)
        keep = []
        with contextlib.suppress(MemoryError):
            while True: keep.append(bytearray(1 << 20))""",
    "makes the agent the first to be killed": """
        for pid in os.listdir("/proc"):
            if pid.isdigit() and int(pid) != os.getpid():
                with contextlib.suppress(OSError):
                    open(f"/proc/{pid}/oom_score_adj", "w").write("1000")
        keep = []
        while True: keep.append(bytearray(8 << 20))""",
    "fills the disk": """
        for folder in ("/tmp", "/workspace", "/dev/shm"):
            with contextlib.suppress(OSError):
                with open(folder + "/full", "wb") as full:
                    while True: full.write(bytes(1 << 20))""",
    "has all the descriptors": """
        def take():
            with contextlib.suppress(OSError):
                while True: os.pipe()
            time.sleep(1000)
        for _ in range(30): child(take)
        take()""",
    "removes what it runs in": """
        import shutil
        shutil.rmtree("/workspace", ignore_errors=True)
        os.kill(os.getpid(), 9)""",
    "leaves its leader a zombie": """
        threading.Thread(target=time.sleep, args=(1000,)).start()
        libc.syscall(60, 0)""",
    "closes all and goes": """
        os.closerange(0, 1024)
        if not os.fork():
            os.setsid()
            if not os.fork(): time.sleep(1000)
        os._exit(0)""",
    "exits as a kill does": "os._exit(137)",
    "exits as the processor limit does": "os._exit(152)",
    "exits as a shell without its program does": "os._exit(127)",
    "looks for the agent's socket": """
        for name in ("sandboxkit-agent", "sandbox-agent"):
            with contextlib.suppress(OSError):
                s = socket.socket(socket.AF_UNIX); s.connect("\\0" + name); s.sendall(b"x" * 99)
        for fd in glob.glob("/proc/*/fd/*"):
            with contextlib.suppress(OSError): os.write(os.open(fd, os.O_WRONLY), b"x")""",
    "writes without end": """
        while True: os.write(1, b"x" * 65536)""",
    "has huge process tables": """
        def large():
            for n in range(3000):
                with contextlib.suppress(OSError, ValueError):
                    libc.mmap(None, 4096, n % 2, 0x22, -1, 0)
            time.sleep(1000)
        for _ in range(60):
            with contextlib.suppress(OSError): child(large)
        while True: pass""",
}
GOOD = "def f(x):\n    return x + 1\n"
CASES = {"entry_point": "f", "cases": [{"args": [1], "expected": 2}]}
TESTS = {"tests": "from solution import f\ndef test_it():\n    assert f(1) == 2\n"}


def _submission(body: str) -> str:
    lines = body.strip("\n").splitlines()
    indent = len(lines[0]) - len(lines[0].lstrip())
    inner = "\n".join("    " + line[indent:] for line in lines)
    return f"{PRELUDE}\ndef f(x):\n{inner}\n    return 0\n"


# What hurt an agent once; graded a second time where its user is root and beside tests.
WORST = (
    "kills its reaper",
    "leaves the agent no open files",
    "signals the agent without end",
    "forks without end",
)


@pytest.mark.parametrize(
    ("where", "task", "names", "in_turn"),
    [
        pytest.param("local", CASES, tuple(HOSTILE), False, marks=pytest.mark.nightly),
        ("local", CASES, tuple(HOSTILE), True),
        ("local", TESTS, WORST, False),
        ("docker", CASES, WORST, True),
    ],
    ids=["local", "in turn", "beside tests", "docker"],
)
def test_a_hostile_submission_is_scored_beside_others(
    where: str, task: dict[str, object], names: tuple[str, ...], in_turn: bool
) -> None:
    """All at once, so that they press on each other; an honest one beside them passes."""
    if where == "docker":
        require_docker()
    submissions = [(name, _submission(HOSTILE[name]), task) for name in names]
    submissions.insert(len(submissions) // 2, ("honest", GOOD, task))
    limits = Limits(timeout=2.0, wall=4.0, deadline=200.0, memory_mb=192, retries=1)
    verdicts = grade_all(where, HostCompare(limits), submissions, in_turn=in_turn)
    masked = {
        name: verdict.detail
        for name, verdict in verdicts.items()
        if verdict.outcome is Outcome.INFRA_ERROR or verdict.attributable_to != "policy"
    }
    assert masked == {}
    passed = {n for n, verdict in verdicts.items() if verdict.outcome is Outcome.PASSED}
    assert passed == {"honest"}
