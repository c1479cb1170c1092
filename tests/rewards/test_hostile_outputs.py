"""200 hostile texts, as submissions, as outputs of programs and as what a model says: a verdict or a tool's text comes back."""

import asyncio
import codecs
import json
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from sandboxkit import ProcessResult, Sandbox, Session
from sandboxkit.integrations._tools import Toolbox
from sandboxkit.integrations.rewards import (
    Grader,
    HostCompare,
    Limits,
    Outcome,
    Verdict,
    banned_patterns,
    extract_code,
)
from sandboxkit.integrations.rewards._evaluation import _verdict, answer_of, claimed
from sandboxkit.integrations.rewards._values import Comparison, ForgedJsonError
from sandboxkit.integrations.rewards.programs import (
    JudgeProgram,
    Program,
)
from sandboxkit.integrations.swe import SweEnv, load_tasks
from sandboxkit.integrations.trl import EnvironmentReward, SandboxEnvironments, SandboxReward
from sandboxkit.integrations.trl._rollout import tools_of
from sandboxkit.integrations.trl._rollouts import _answer
from tests.rewards.conftest import grade_all
from tests.rewards.corpus import DATA, fill, read
from tests.strangers.tasks import write

pytestmark = [pytest.mark.timeout(300), pytest.mark.filterwarnings("ignore")]
GIVEN = fill(read(DATA / "hostile_outputs.toml"), {"high": "\ud800", "low": "\udcff"})


def _texts() -> list[str]:
    texts = [*GIVEN["texts"], *(piece * count for piece, count in GIVEN["repeated"])]
    for encoding in GIVEN["encodings"]:
        for text in GIVEN["encoded"]:
            binary = encoding in ("zlib", "base64")
            data = codecs.encode(text.encode() if binary else text, encoding)
            texts.append(data.decode(errors="surrogateescape"))
    texts += [each.replace("{}", inner) for each in GIVEN["around"] for inner in GIVEN["within"]]
    return list(dict.fromkeys(texts))


TEXTS = _texts()
EVERY = 12
"""By day a grader gets one text in so many, and the next one others; by night all."""
LIMITS = Limits(timeout=4, wall=20, memory_mb=512)
EXPECTED = "what no text here is"


def data_of(text: str) -> bytes:
    return text.encode(errors="surrogatepass")


def test_there_are_200_texts() -> None:
    assert len(TEXTS) >= 200


def as_value(text: str) -> str:
    return f"def f(n): return {text!r}"


def as_output(text: str) -> str:
    return f"import os\ndata = {data_of(text)!r}\nwhile data: data = data[os.write(1, data):]"


def checker(_: str, output: str, expected: str) -> float:
    return float(json.loads(output) == int(expected) or int(output))


def reader(source: str) -> JudgeProgram:
    return JudgeProgram(f"import json, sys\n{source}", language="python")


TESTS = {
    "tests": "import json\nfrom solution import f\ndef test():\n    text = f(1)\n    assert json.loads(text) == int(text) == -7"
}
STDIN = {"cases": [{"stdin": "1\n", "stdout": "-7\n"}]}
READER = reader("sys.exit(json.loads(open(sys.argv[2]).read()) != -7)")
TALKER = reader("print(1, flush=True)\nsys.exit(int(sys.stdin.readline()) != -7)")
Make = Callable[[str], str]
# Any: rows of data sets.
GRADERS: dict[str, tuple[Grader, Mapping[str, Any], Make]] = {
    "cases": (
        HostCompare(LIMITS),
        {"entry_point": "f", "cases": [{"args": [1], "expected": -7}]},
        as_value,
    ),
    "near cases": (
        HostCompare(LIMITS),
        {"entry_point": "f", "cases": [{"args": [1], "expected": -7}], "abs_tol": 0.1},
        as_value,
    ),
    "lines": (HostCompare(LIMITS), {"test_list": ["assert int(f(1)) == -7"]}, as_value),
    "tests": (HostCompare(LIMITS), TESTS, as_value),
    "shared tests": (HostCompare(LIMITS), {**TESTS, "stateful": True}, as_value),
    "stdin cases": (HostCompare(LIMITS), STDIN, as_output),
    "programs": (Program("python", limits=LIMITS), {**STDIN, "checker": "floats"}, as_output),
    "a checker's function": (
        Program("python", limits=LIMITS),
        {**STDIN, "checker": checker},
        as_output,
    ),
    "a checker's program": (
        Program("python", limits=LIMITS),
        {**STDIN, "checker": READER},
        as_output,
    ),
    "an interactor": (
        Program("python", limits=LIMITS),
        {"cases": [{"stdin": "1\n"}], "interactor": TALKER},
        as_output,
    ),
}


@pytest.mark.parametrize(
    "every", [EVERY, pytest.param(1, marks=pytest.mark.nightly)], ids=["some", "all"]
)
@pytest.mark.parametrize("name", GRADERS)
def test_a_grader_gives_a_verdict(name: str, every: int) -> None:
    grader, task, make = GRADERS[name]
    first = [*GRADERS].index(name) % every
    todo = [(f"submission {n}", TEXTS[n], task) for n in range(first, len(TEXTS), every)]
    todo += [(f"output {n}", make(TEXTS[n]), task) for n in range(first, len(TEXTS), every)]
    verdicts = grade_all("local", grader, todo, in_turn=True, concurrency=2)
    wrong = {n: v for n, v in verdicts.items() if v.reward != 0 or not v.detail.isascii()}
    assert wrong == {}


def test_what_reads_a_programs_output_raises_nothing() -> None:
    for text in TEXTS:
        result = ProcessResult(("x",), 0, data_of(text), b"", False, 0.0)
        assert isinstance(answer_of(result), list | Verdict)
        assert getattr(_verdict(data_of(text), "token", 1), "score", 0) == 0
        for expected in (-7, ["float", "nan"], ["list", [1]], ["dict", []], None):
            value = claimed(result, expected)
            try:
                assert isinstance(value, Verdict) or not Comparison().equal(value, expected)
            except ForgedJsonError:
                pass  # the verdict is "tampered"


def test_what_reads_a_models_text_raises_nothing() -> None:
    for text in TEXTS:
        code = extract_code(text)
        assert code is None or isinstance(code, str)
        banned_patterns(text, ["sorted", "os.system"])


def test_a_batch_of_completions_is_scored() -> None:
    texts = [*TEXTS, *(f"```python\n{text}\n```" for text in TEXTS)]
    grader = HostCompare(LIMITS)
    with closing(SandboxReward(grader, provider="local", pool=2, check_tasks="off")) as reward:
        rewards = reward(
            [f"prompt {n}" for n in range(len(texts))],
            texts,
            test_list=[["assert f(1) == -7"]] * len(texts),
        )
    assert rewards == [0.0] * len(texts)


async def called(box: Toolbox, text: str) -> None:
    """Hand a text to every tool, as each of its arguments and as all of them."""
    path = f"/tmp/{text[:300]}"
    calls: list[tuple[Any, Any]] = [
        (text, "{}"),
        ("bash", text),
        ("str_replace_editor", text),
        ("bash", {"command": f"cat <<'@@'\n{text[:4000]}\n@@\n"}),
        ("str_replace_editor", {"command": text[:99], "path": "/tmp"}),
        ("str_replace_editor", {"command": "create", "path": path, "file_text": text}),
        ("str_replace_editor", {"command": "view", "path": text[:300]}),
        ("str_replace_editor", {"command": "insert", "path": path, "insert_line": text[:9], "new_str": text}),
        ("str_replace_editor", {"command": "str_replace", "path": path, "old_str": text, "new_str": text}),
    ]  # fmt: skip
    for name, arguments in calls:
        result = await box.call(name, arguments)
        result.text.encode()


def test_a_tool_answers_with_text() -> None:
    async def main() -> None:
        async with Session("local") as session, session.sandbox() as sandbox:
            box = Toolbox(sandbox, timeout=10)
            for text in TEXTS:
                await called(box, text)
            ended = await box.call("bash", {"command": "echo it still works"})
            assert "it still works" in ended.text

    asyncio.run(main())


async def judge(sandbox: Sandbox, row: Mapping[str, Any]) -> Verdict:
    """A scorer as authors write it, which reads what the policy left."""
    text = await sandbox.read_file("/workspace/answer", max_bytes=1 << 16)
    score = float(json.loads(text) == int(text.decode()) == -7)
    return Verdict(Outcome.PASSED if score else Outcome.FAILED, score)


FEW = pytest.mark.parametrize(
    "every", [2 * EVERY, pytest.param(1, marks=pytest.mark.nightly)], ids=["some", "all"]
)


@FEW
def test_an_environment_grades_what_was_said_and_left(every: int) -> None:
    chosen = TEXTS[::every]
    with SandboxEnvironments(judge, provider="local") as environments:
        made = [environments() for _ in chosen]
        for environment, text in zip(made, chosen, strict=True):
            environment.reset()
            tools = {tool.__name__: tool for tool in tools_of(environment)}
            for name in (*tools, text[:99]):
                for given in (text, {"command": "true", "path": text[:300], "content": text}):
                    message = {"function": {"name": name, "arguments": given}}
                    _answer(tools, message, environment._trace)["content"].encode()
            environment.str_replace_editor("create", "/workspace/answer", file_text=text)
        rewards = EnvironmentReward()([f"{n}" for n in range(len(made))], chosen, environments=made)
    assert rewards == [0.0] * len(chosen)


JUDGED = """
import json, subject
def test_it():
    text = subject.read_file("/workspace/answer", 1 << 16)
    assert json.loads(text) == int(text) == -7 and subject.read_file(text.decode()) == b""
"""


@FEW
def test_a_task_of_software_engineering_is_graded_by_what_was_left(
    every: int, tmp_path: Path
) -> None:
    async def main() -> None:
        tasks = load_tasks(write(tmp_path / "a", **{"tests/judge.py": JUDGED}).parent)
        async with Session("local") as session, SweEnv(session, tasks) as env:
            for text in TEXTS[1::every]:
                await env.reset("a")
                file = {"path": "/workspace/answer", "file_text": text}
                await env.step("str_replace_editor", {"command": "create", **file})
                end = await env.step("submit", "{}")
                assert (end.reward, end.verdict and end.verdict.trust) == (0.0, "isolated")

    asyncio.run(main())
