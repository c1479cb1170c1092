"""Programs over HTTP: our own shape, and SandboxFusion's."""

import base64
import shutil

import httpx
import pytest

from sandboxkit.integrations.rewards.programs import LANGUAGES
from sandboxkit.testing.conformance._base import until
from tests.components import needs_program
from tests.data_here import beside
from tests.serve.conftest import Serve
from tests.serve.graders import Hanging, Mortal

GIVEN = beside(__file__, "requests.toml")
PROGRAMS = beside(__file__, "programs.toml")


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def test_a_program_reads_its_input_and_files(local: str, http: httpx.Client) -> None:
    code = "import sys; print(open('/tmp/data', 'rb').read(), input()); sys.exit(3)"
    body = {"code": code, "stdin": "hello", "files": {"/tmp/data": encoded(b"\x00\xff")}}
    result = http.post(f"{local}/v1/run", json=body).json()
    assert (result["outcome"], result["returncode"]) == ("exited", 3)
    assert result["stdout"] == "b'\\x00\\xff' hello\n"
    assert result["seconds"] > 0


@pytest.mark.parametrize(
    ("code", "outcome"), [("while True: pass", "timeout"), ("print('x' * 10**7)", "truncated")]
)
def test_a_program_past_a_limit_says_which(
    local: str, http: httpx.Client, code: str, outcome: str
) -> None:
    result = http.post(f"{local}/v1/run", json={"code": code, "timeout": 1}).json()
    assert (result["outcome"], result["returncode"]) == (outcome, None)
    assert result["detail"]


def test_programs_leave_nothing_for_each_other(local: str, http: httpx.Client) -> None:
    code = "import os; print(os.path.exists('/tmp/left')); open('/tmp/left', 'w')"
    for _ in range(4):
        assert http.post(f"{local}/v1/run", json={"code": code}).json()["stdout"] == "False\n"


def test_sandbox_fusion_gets_its_own_shape(local: str, http: httpx.Client) -> None:
    given = GIVEN["fusion"]
    answer = http.post(f"{local}/run_code", json=given["body"]).json()
    assert answer.pop("run_result").pop("execution_time") > 0
    assert answer == {"compile_result": None, "executor_pod_name": None, **given["answer"]}


@pytest.mark.parametrize(("code", "status"), GIVEN["failing"])
def test_sandbox_fusion_hears_of_a_failed_program(
    local: str, http: httpx.Client, code: str, status: str
) -> None:
    body = {"code": code, "language": "python", "run_timeout": 1}
    answer = http.post(f"{local}/run_code", json=body).json()
    assert answer["status"] == "Failed"
    assert answer["run_result"]["status"] == status


@pytest.mark.parametrize(
    ("change", "named"), [({"language": "lean"}, "lean"), ({"fetch_files": ["a"]}, "fetch_files")]
)
def test_what_sandbox_fusion_has_and_we_do_not_is_refused(
    local: str, http: httpx.Client, change: dict[str, object], named: str
) -> None:
    body = {"code": "1", "language": "python", **change}
    answer = http.post(f"{local}/run_code", json=body)
    assert answer.status_code == 422
    assert named in answer.text


@pytest.mark.parametrize(("stdin", "status"), [("!", "Success"), ("?", "Failed")])
@needs_program("g++")
def test_a_compiled_program_has_a_result_of_its_compiler(
    local: str, http: httpx.Client, stdin: str, status: str
) -> None:
    body = {"code": PROGRAMS["reads_input_and_file"], "language": "cpp", "stdin": stdin}
    body["files"] = {"a.txt": encoded(b"hi")}
    answer = http.post(f"{local}/run_code", json=body).json()
    assert answer["status"] == status
    assert answer["compile_result"]["status"] == answer["run_result"]["status"] == "Finished"
    assert answer["compile_result"]["return_code"] == 0
    assert answer["compile_result"]["execution_time"] > 0
    assert answer["run_result"]["return_code"] == (0 if stdin == "!" else 3)
    assert answer["run_result"]["stdout"] == f"hi{stdin}\n"


@needs_program("g++")
def test_a_program_that_does_not_compile_is_not_run(local: str, http: httpx.Client) -> None:
    body = {"code": "int main( {", "language": "cpp"}
    answer = http.post(f"{local}/run_code", json=body).json()
    assert (answer["status"], answer["run_result"]) == ("Failed", None)
    assert answer["compile_result"]["status"] == "Finished"
    assert answer["compile_result"]["return_code"] == 1
    assert "main.cpp:1" in answer["compile_result"]["stderr"]
    own = http.post(f"{local}/v1/run", json=body).json()
    assert (own["outcome"], own["compiler"]["returncode"]) == ("compile_error", 1)


@needs_program("g++")
def test_a_compiler_that_takes_too_long_is_told_from_one_that_refuses(
    local: str, http: httpx.Client
) -> None:
    body = {"code": PROGRAMS["slow_to_compile"], "language": "cpp", "compile_timeout": 1}
    answer = http.post(f"{local}/run_code", json={**body, "run_timeout": 50}).json()
    assert (answer["status"], answer["run_result"]) == ("Failed", None), answer
    assert answer["compile_result"]["status"] == "TimeLimitExceeded", answer


def test_a_language_whose_toolchain_is_missing_is_named(local: str, http: httpx.Client) -> None:
    missing = next(
        each
        for each in LANGUAGES
        if each.name != "python"
        and not any((shutil.which(tool) or "").startswith("/usr/bin/") for tool in each.tools)
    )
    answer = http.post(f"{local}/run_code", json={"code": "", "language": missing.name})
    assert answer.status_code == 422, answer.text
    assert answer.json()["error"] == "ConfigurationError"
    assert f"for programs in {missing.name}" in answer.json()["detail"]


def test_no_program_is_said_to_have_failed_when_the_backend_dies(
    serve: Serve, http: httpx.Client
) -> None:
    provider = Mortal()
    provider.dead = True
    url = serve(provider=provider, pool=0)
    run = http.post(f"{url}/v1/run", json={"code": "1"})
    assert run.status_code == 503
    assert "the daemon died" in run.text
    assert run.headers["retry-after"]
    fusion = http.post(f"{url}/run_code", json={"code": "1", "language": "python"})
    assert fusion.status_code == 504


def test_a_program_that_never_gets_a_sandbox_is_no_failed_program(
    serve: Serve, http: httpx.Client
) -> None:
    url = serve(provider=Hanging(), pool=0, deadline=1)
    run = http.post(f"{url}/v1/run", json={"code": "1", "timeout": 0.5})
    assert run.status_code == 503
    assert "not run within deadline=1 s" in run.text
    until(lambda: "sandboxkit_admitted 0.0" in http.get(f"{url}/metrics").text, "it ends", 60)


def test_a_timeout_that_the_deadline_would_cut_is_refused(serve: Serve, http: httpx.Client) -> None:
    url = serve(provider=Mortal(), pool=0, deadline=5)
    run = http.post(f"{url}/v1/run", json={"code": "1", "timeout": 5})
    assert run.status_code == 422
    assert "timeout=5 is not below the service's deadline of 5 s" in run.text
