"""verl's own client of SandboxFusion against our service."""

from tests.frameworks_here import framework
from tests.serve.conftest import replica

fusion = framework("verl.utils.reward_score.sandbox_fusion.utils")

CASES: dict[str, object] = {"inputs": ["3\n", "4\n"], "outputs": ["6\n", "8\n"]}


def test_verl_grades_programs_through_the_service() -> None:
    with replica(provider="local", pool=2) as url:

        def results(code: str, cases: dict[str, object] = CASES) -> list[object]:
            found, _ = fusion.check_correctness(f"{url}/run_code", cases, code, timeout=2)
            return list(found)

        assert results("print(int(input()) * 2)") == [True, True]
        assert results("print(6)") == [True, False]
        assert results("while True: pass") == [-3, -3]
        assert results("1 / 0") == [-2, -2]
        function: dict[str, object] = {"inputs": ["[3]"], "outputs": ["6"], "fn_name": "f"}
        assert results("def f(x): return x[0] * 2", function) == [True]
