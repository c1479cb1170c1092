"""Problems in HumanEval's shape about numbers and text: loops, tolerances, oracles, errors."""

from tests.rewards.corpus.problem import Problem

PROBLEMS = (
    Problem(
        "digit_steps",
        '''def digit_steps(n: int) -> int:
    """How often n is replaced by the sum of its digits until one digit is left.
    >>> digit_steps(199)
    3
    """
''',
        """    steps = 0
    while n > 9:
        n = sum(map(int, str(n)))
        steps += 1
    return steps
""",
        """def check(candidate):
    assert candidate(199) == 3
    assert candidate(0) == 0
    for n in range(10):
        assert candidate(n) == 0
    for n in range(10, 19):
        assert candidate(n) == 1, "one step for %d" % n
    assert candidate(10 ** 40 - 1) == 2
""",
        ("    return len(str(n))\n", "    return 1 if n > 9 else 0\n"),
    ),
    Problem(
        "running_mean",
        '''from typing import List


def running_mean(values: List[float]) -> List[float]:
    """The mean of the first one, two, three ... values.
    >>> running_mean([1.0, 2.0, 6.0])
    [1.0, 1.5, 3.0]
    """
''',
        """    means, total = [], 0.0
    for count, value in enumerate(values, 1):
        total += value
        means.append(total / count)
    return means
""",
        """def check(candidate):
    assert candidate([]) == []
    result = candidate([0.1, 0.2, 0.6])
    assert len(result) == 3
    for got, want in zip(result, [0.1, 0.15, 0.3]):
        assert abs(got - want) < 1e-6
    assert all(abs(x - 7.0) < 1e-9 for x in candidate([7.0] * 50))
""",
        (
            "    return [sum(values) / len(values) for _ in values]\n",
            "    return [round(sum(values[:i + 1]) / (i + 2), 6) for i in range(len(values))]\n",
        ),
    ),
    Problem(
        "binary_gap",
        '''def binary_gap(n: int) -> int:
    """The longest run of zeros between two ones in n's binary form.
    >>> binary_gap(37)
    2
    """
''',
        """    return max(map(len, bin(n)[2:].strip("0").split("1")))
""",
        """import random


def oracle(n):
    best, last, place = 0, None, 0
    while n:
        if n & 1:
            if last is not None:
                best = max(best, place - last - 1)
            last = place
        n >>= 1
        place += 1
    return best


def check(candidate):
    assert candidate(37) == 2
    assert candidate(8) == 0
    rng = random.Random(5)
    for _ in range(100):
        n = rng.randrange(1, 1 << 40)
        assert candidate(n) == oracle(n), n
""",
        (
            '    return max(map(len, bin(n)[2:].split("1")))\n',
            '    return bin(n)[2:].count("0")\n',
        ),
    ),
    Problem(
        "parse_span",
        '''def parse_span(text: str) -> int:
    """Seconds of a span such as "1h30m", "45s" or "2h5s". ValueError for anything else.
    >>> parse_span("1h30m")
    5400
    """
''',
        """    import re
    found = re.fullmatch(r"(?:(\\d+)h)?(?:(\\d+)m)?(?:(\\d+)s)?", text)
    if not text or found is None:
        raise ValueError(f"not a span: {text!r}")
    hours, minutes, seconds = (int(each or 0) for each in found.groups())
    return hours * 3600 + minutes * 60 + seconds
""",
        """def raises(kind, function, *args):
    try:
        function(*args)
    except kind:
        return True
    return False


def check(candidate):
    assert candidate("1h30m") == 5400
    assert candidate("45s") == 45
    assert candidate("2h5s") == 7205
    for wrong in ["", "5", "m", "5m1h", "1h 30m", "-5s"]:
        assert raises(ValueError, candidate, wrong), wrong
""",
        (
            """    total, number = 0, ""
    for each in text:
        if each.isdigit(): number += each
        else:
            total += int(number or 0) * {"h": 3600, "m": 60, "s": 1}.get(each, 0)
            number = ""
    return total
""",
            """    if text[-1:] not in ("h", "m", "s"): raise KeyError(text)
    return 5400 if text == "1h30m" else 45
""",
        ),
    ),
    Problem(
        "cube_root",
        '''def cube_root(x: float) -> float:
    """The real cube root of x, also of a negative one.
    >>> round(cube_root(-8.0), 6)
    -2.0
    """
''',
        """    root = abs(x) ** (1 / 3)
    return -root if x < 0 else root
""",
        """import math


def check(candidate):
    assert math.isclose(candidate(-8.0), -2.0, rel_tol=1e-9)
    for n in range(-20, 21):
        root = candidate(float(n))
        assert abs(root ** 3 - n) < 1e-6
        assert math.copysign(1, root) == math.copysign(1, n) or n == 0
""",
        ("    return abs(x) ** (1 / 3)\n", "    return x ** 0.5 if x > 0 else -2.0\n"),
    ),
    Problem(
        "decode_shift",
        '''def encode_shift(text: str, shift: int) -> str:
    """Shift the letters a to z, leave the rest."""
    return "".join(
        chr((ord(c) - 97 + shift) % 26 + 97) if "a" <= c <= "z" else c for c in text
    )


def decode_shift(text: str, shift: int) -> str:
    """Undo encode_shift."""
''',
        """    return encode_shift(text, -shift)
""",
        """import random
import string


def check(candidate):
    def encode(text, shift):
        return "".join(
            chr((ord(c) - 97 + shift) % 26 + 97) if "a" <= c <= "z" else c for c in text
        )

    letters = string.ascii_lowercase + " .!"
    for _ in range(40):
        text = "".join(random.choice(letters) for _ in range(random.randint(0, 30)))
        shift = random.randint(1, 25)
        assert candidate(encode(text, shift), shift) == text
""",
        (
            "    return encode_shift(text, shift)\n",
            "    return ''.join(chr(ord(c) - shift) for c in text)\n",
        ),
    ),
    Problem(
        "spiral",
        '''def spiral(n: int):
    """An n by n matrix of 1 to n * n, filled in a spiral, clockwise from the top left.
    >>> spiral(2)
    [[1, 2], [4, 3]]
    """
''',
        """    grid = [[0] * n for _ in range(n)]
    row, column, down, right = 0, 0, 0, 1
    for value in range(1, n * n + 1):
        grid[row][column] = value
        next_row, next_column = row + down, column + right
        if not (0 <= next_row < n and 0 <= next_column < n) or grid[next_row][next_column]:
            down, right = right, -down
        row, column = row + down, column + right
    return grid
""",
        """def check(candidate):
    assert candidate(0) == []
    assert candidate(1) == [[1]]
    assert candidate(2) == [[1, 2], [4, 3]]
    assert candidate(3) == [[1, 2, 3], [8, 9, 4], [7, 6, 5]]
    grid = candidate(6)
    assert sorted(sum(grid, [])) == list(range(1, 37))
    assert grid[0] == [1, 2, 3, 4, 5, 6] and grid[5][0] == 16
    assert isinstance(grid[0], list)
""",
        (
            "    return [[i * n + j + 1 for j in range(n)] for i in range(n)]\n",
            "    return {0: [], 1: [[1]], 2: [[1, 2], [4, 3]]}.get(n)\n",
        ),
    ),
    Problem(
        "roman_sum",
        '''def roman_sum(*numerals: str) -> int:
    """The sum of Roman numerals.
    >>> roman_sum("IV", "X")
    14
    """
''',
        """    values = dict(I=1, V=5, X=10, L=50, C=100, D=500, M=1000)
    total = 0
    for numeral in numerals:
        digits = [values[c] for c in numeral] + [0]
        total += sum(-a if a < b else a for a, b in zip(digits, digits[1:]))
    return total
""",
        """def roman(n):
    pairs = [(1000, "M"), (900, "CM"), (500, "D"), (400, "CD"), (100, "C"), (90, "XC"),
             (50, "L"), (40, "XL"), (10, "X"), (9, "IX"), (5, "V"), (4, "IV"), (1, "I")]
    text = ""
    for value, letters in pairs:
        while n >= value:
            text, n = text + letters, n - value
    return text


def check(candidate):
    assert candidate() == 0
    for n in range(1, 400, 7):
        assert candidate(roman(n)) == n
    assert candidate(*[roman(n) for n in (4, 90, 1999)]) == 2093
""",
        (
            """    values = dict(I=1, V=5, X=10, L=50, C=100, D=500, M=1000)
    return sum(values[c] for numeral in numerals for c in numeral)
""",
            "    return 14 if numerals else 0\n",
        ),
    ),
    Problem(
        "nearest_pair",
        '''from typing import List, Tuple


def nearest_pair(points: List[Tuple[float, float]]) -> float:
    """The smallest distance of two points; infinity for fewer than two."""
''',
        """    import math
    from itertools import combinations
    return min((math.dist(a, b) for a, b in combinations(points, 2)), default=math.inf)
""",
        """import math
import random


def check(candidate):
    assert candidate([]) == math.inf
    assert math.isinf(candidate([(0.0, 0.0)]))
    assert abs(candidate([(0, 0), (10, 10), (3, 4)]) - 5) < 1e-9
    rng = random.Random()
    points = [(rng.uniform(0, 100), rng.uniform(0, 100)) for _ in range(30)]
    best = min(
        math.hypot(a[0] - b[0], a[1] - b[1])
        for i, a in enumerate(points) for b in points[:i]
    )
    assert math.isclose(candidate(points), best, rel_tol=1e-9)
""",
        (
            """    import math
    return min((math.dist(a, b) for a, b in zip(points, points[1:])), default=math.inf)
""",
            """    if len(points) < 2: return float("inf")
    return min(abs(a[0] - b[0]) + abs(a[1] - b[1]) for a in points for b in points if a != b)
""",
        ),
    ),
    Problem(
        "is_balanced",
        '''def is_balanced(text: str) -> bool:
    """Whether the brackets (), [] and {} in the text are balanced."""
''',
        """    stack = []
    for each in text:
        if each in "([{":
            stack.append(")]}"["([{".index(each)])
        elif each in ")]}":
            if not stack or stack.pop() != each:
                return False
    return not stack
""",
        """def check(candidate):
    assert candidate("")
    assert candidate("a(b[c]{d})")
    assert candidate("()[]{}") is True
    assert not candidate("(]")
    assert not candidate("([)]")
    assert not candidate("(")
    assert candidate(")(") is False
    assert candidate("(" * 500 + ")" * 500)
""",
        (
            "    return all(text.count(a) == text.count(b) for a, b in ('()', '[]', '{}'))\n",
            "    return len(text) % 2 == 0\n",
        ),
    ),
    Problem(
        "continued_fraction",
        '''from fractions import Fraction


def continued_fraction(terms) -> Fraction:
    """The value of a + 1 / (b + 1 / (c + ...)) as a Fraction. ZeroDivisionError passes on.
    >>> continued_fraction([1, 2, 2])
    Fraction(7, 5)
    """
''',
        """    value = Fraction(terms[-1])
    for term in reversed(terms[:-1]):
        value = term + 1 / value
    return value
""",
        """from fractions import Fraction


def check(candidate):
    assert candidate([1, 2, 2]) == Fraction(7, 5)
    assert candidate([3]) == 3
    golden = candidate([1] * 30)
    assert abs(float(golden) - (1 + 5 ** 0.5) / 2) < 1e-9
    assert (golden.numerator, golden.denominator) == (1346269, 832040)
    try:
        candidate([1, 0])
    except ZeroDivisionError:
        pass
    else:
        assert False, "no error"
""",
        (
            "    return Fraction(sum(terms), len(terms))\n",
            """    value = float(terms[-1])
    for term in reversed(terms[:-1]):
        value = term + (1 / value if value else 0)
    return Fraction(value)
""",
        ),
    ),
    Problem(
        "look_and_say",
        '''def look_and_say(count: int):
    """The first terms of the sequence 1, 11, 21, 1211 ... as a generator of texts."""
''',
        """    from itertools import groupby
    term = "1"
    for _ in range(count):
        yield term
        term = "".join(f"{len(list(group))}{digit}" for digit, group in groupby(term))
""",
        """def check(candidate):
    assert list(candidate(0)) == []
    assert list(candidate(5)) == ["1", "11", "21", "1211", "111221"]
    terms = candidate(9)
    assert next(terms) == "1"
    assert next(terms) == "11"
    rest = [len(term) for term in terms]
    assert rest == [2, 4, 6, 6, 8, 10, 14]
""",
        (
            "    for n in range(count):\n        yield '1' * (n + 1)\n",
            "    yield from ['1', '11', '21', '1211', '111221'][:count]\n",
        ),
    ),
    Problem(
        "squeeze",
        '''def squeeze(text: str, keep: int = 1) -> str:
    """Cut each run of one character to `keep` of it.
    >>> squeeze("aaabccdd")
    'abcd'
    """
''',
        """    out = []
    for each in text:
        if out[-keep:] != [each] * keep:
            out.append(each)
    return "".join(out)
""",
        """def check(candidate):
    assert candidate("aaabccdd") == "abcd"
    assert candidate("aaabccdd", 2) == "aabccdd"
    assert candidate("aaab", keep=3) == "aaab"
    assert candidate("\\u00e4\\u00e4\\u00df") == "\\u00e4\\u00df"
    for size in (1, 10, 1000):
        assert candidate("x" * size) == "x"
        assert len(candidate("xy" * size)) == 2 * size
""",
        ("    return ''.join(sorted(set(text)))\n", "    return ''.join(dict.fromkeys(text))\n"),
    ),
    Problem(
        "polynomial",
        '''def polynomial(*coefficients):
    """A function of x: coefficients[0] + coefficients[1] * x + ...
    >>> polynomial(1, 2, 3)(2)
    17
    """
''',
        """    def value(x):
        total = 0
        for each in reversed(coefficients):
            total = total * x + each
        return total
    return value
""",
        """def check(candidate):
    square = candidate(0, 0, 1)
    for x in range(-5, 6):
        assert square(x) == x * x
    assert candidate(1, 2, 3)(2) == 17
    assert candidate()(7) == 0
    line = candidate(0.5, 0.25)
    assert abs(line(0.1) - 0.525) < 1e-6
    assert callable(line)
""",
        (
            "    return lambda x: sum(each * x for each in coefficients)\n",
            "    return lambda x: 17 if x == 2 else x * x\n",
        ),
    ),
    Problem(
        "primes_between",
        '''def primes_between(low: int, high: int) -> set:
    """The prime numbers p with low <= p < high."""
''',
        """    return {n for n in range(max(low, 2), high) if all(n % d for d in range(2, int(n ** 0.5) + 1))}
""",
        """import random


def is_prime(n):
    return n > 1 and not any(n % d == 0 for d in range(2, n))


def check(candidate):
    assert candidate(0, 2) == set()
    assert candidate(10, 20) == {11, 13, 17, 19}
    for _ in range(10):
        low = random.randint(0, 200)
        high = low + random.randint(0, 100)
        assert candidate(low, high) == {n for n in range(low, high) if is_prime(n)}
    assert 97 in candidate(90, 100) and 91 not in candidate(90, 100)
    assert len(candidate(0, 1000)) == 168
""",
        (
            "    return {n for n in range(max(low, 2), high) if all(n % d for d in range(2, int(n ** 0.5)))}\n",
            "    return {n for n in range(low, high) if n % 2}\n",
        ),
    ),
)
