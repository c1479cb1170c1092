"""Which names tests take from a submission, and which setup is beside it."""

import asyncio
from typing import Any

import pytest

from sandboxkit import ConfigurationError, Session
from sandboxkit.integrations.rewards import HostCompare, Limits
from sandboxkit.integrations.rewards._cases import light
from sandboxkit.integrations.rewards._names import undefined

pytestmark = pytest.mark.timeout(300)
GRADER = HostCompare(Limits(timeout=10, wall=20))


@pytest.mark.parametrize(
    ("task", "missing"),
    [
        ({"tests": "from solution import f\ndef test(): assert f(1) == orcale(1)"}, "orcale"),
        (
            {"entry_point": "f", "test": "def check(candidate):\n    assert near(candidate(1), 1)"},
            "near",
        ),
        ({"test_list": ["assert f(1) == 2", "assert g(1) == 2"]}, "g"),
        ({"test_list": ["assert f(1) == 2"], "test_setup_code": "x = helper(1)"}, "helper"),
    ],
)
def test_an_undefined_name_is_an_error_of_the_task(task: dict[str, Any], missing: str) -> None:
    async def main() -> None:
        async with Session("local") as session:
            await GRADER.grade(session, "def f(x): return x", task)

    with pytest.raises(ConfigurationError, match=f"'{missing}'.*names"):
        asyncio.run(main())


def test_names_are_read_from_scopes() -> None:
    source = "import math\ndef a(x): return [b(y) for y in x] + [math.pi, c]\ndef b(z): return z"
    assert undefined(source) == {"c"}
    assert undefined("def f():\n    later()\n", known={"later"}) == set()


def test_setup_beside_a_submission_has_only_imports_and_constants() -> None:
    setup = light("import math\nN = 3\n'text'\nfrom os import path")
    assert setup is not None
    assert (setup.imports, list(setup.constants)) == ("import math\nfrom os import path", ["N"])
    assert light("N = 3\nN = 4") is None
    assert light("def oracle(x): return x") is None
