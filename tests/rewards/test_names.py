"""Which names tests take from a submission, and which setup is beside it."""

from sandboxkit.integrations.rewards._cases import light
from sandboxkit.integrations.rewards._names import undefined


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
