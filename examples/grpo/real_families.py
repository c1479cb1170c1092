"""The families of short functions from which `real_tasks` makes tasks, as data.

They were chosen so that the untrained model answers about 1 in 4 of all tasks correctly.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["FAMILIES", "Family"]

Arguments = tuple[Any, ...]  # Any: plain data of many types
Inputs = Callable[[random.Random], Arguments]


@dataclass(frozen=True, slots=True)
class Family:
    """Tasks that differ only in their parameters, which are written as `$n` and the like."""

    signature: str
    says: str
    returns: str
    """The reference solution: the expression that the function returns."""
    inputs: Inputs
    values: Mapping[str, Sequence[object]]
    new: bool = False
    """Whether the whole family is held out from training."""

    @property
    def name(self) -> str:
        """The function's name."""
        return self.signature.partition("(")[0]


def _numbers(most: int = 60, least: int = 0, short: int = 4, long: int = 12) -> Inputs:
    return lambda r: ([r.randint(least, most) for _ in range(r.randint(short, long))],)


def _number(most: int = 200, least: int = -50) -> Inputs:
    return lambda r: (r.randint(least, most),)


def _sentence(r: random.Random) -> str:
    return " ".join(_word(r) for _ in range(r.randint(3, 9)))


def _word(r: random.Random) -> str:
    return "".join(r.choice("aaabcdeeefghilmnoorsstttu") for _ in range(r.randint(1, 9)))


def _text(r: random.Random) -> Arguments:
    return (_sentence(r),)


def _one_word(r: random.Random) -> Arguments:
    return (_word(r) + _word(r),)


def _words(r: random.Random) -> Arguments:
    return (_sentence(r).split(),)


_FEW, _MANY = range(2, 8), range(2, 40, 3)
_LETTERS = "aeiostnr"

FAMILIES = (
    # Lists of numbers
    Family(
        "largest(numbers)",
        "Return the $n largest numbers, largest first.",
        "sorted(numbers, reverse=True)[:$n]",
        _numbers(),
        {"n": range(1, 9)},
    ),
    Family(
        "greater_than(numbers)",
        "Return a list of the numbers that are greater than $n.",
        "[x for x in numbers if x > $n]",
        _numbers(),
        {"n": _MANY},
    ),
    Family(
        "count_above(numbers)",
        "Return how many numbers are greater than $n.",
        "sum(x > $n for x in numbers)",
        _numbers(),
        {"n": _MANY},
    ),
    Family(
        "sum_above(numbers)",
        "Return the sum of the numbers that are greater than $n.",
        "sum(x for x in numbers if x > $n)",
        _numbers(),
        {"n": _MANY},
    ),
    Family(
        "multiples(numbers)",
        "Return a list of the numbers that are divisible by $n.",
        "[x for x in numbers if x % $n == 0]",
        _numbers(),
        {"n": _FEW},
    ),
    Family(
        "without_multiples(numbers)",
        "Return a list of the numbers that are not divisible by $n.",
        "[x for x in numbers if x % $n]",
        _numbers(),
        {"n": _FEW},
    ),
    Family(
        "sum_of_multiples(numbers)",
        "Return the sum of all numbers that are divisible by $n.",
        "sum(x for x in numbers if x % $n == 0)",
        _numbers(),
        {"n": _FEW},
    ),
    Family(
        "last_items(items)",
        "Return the last $n items of the list.",
        "items[-$n:]",
        _numbers(short=8),
        {"n": range(1, 9)},
    ),
    Family(
        "add_to_each(numbers)",
        "Add $n to each number and return the new list.",
        "[x + $n for x in numbers]",
        _numbers(),
        {"n": _MANY},
    ),
    Family(
        "scale(numbers)",
        "Multiply each number by $a, then add $b, and return the new list.",
        "[x * $a + $b for x in numbers]",
        _numbers(),
        {"a": (2, 3, 5, 7), "b": (1, 4, 6, 9)},
    ),
    Family(
        "sum_of_powers(numbers)",
        "Return the sum of the numbers, each raised to the power of $n.",
        "sum(x**$n for x in numbers)",
        _numbers(9),
        {"n": range(2, 9)},
    ),
    Family(
        "count_value(items)",
        "Return how many times $n occurs in the list.",
        "items.count($n)",
        _numbers(8),
        {"n": range(1, 9)},
    ),
    Family(
        "all_at_least(numbers)",
        "Return True if all numbers are at least $n.",
        "all(x >= $n for x in numbers)",
        _numbers(30, 4, 1, 5),
        {"n": range(6, 20, 2)},
    ),
    Family(
        "any_above(numbers)",
        "Return True if any number is greater than $n.",
        "any(x > $n for x in numbers)",
        _numbers(40, 0, 1, 5),
        {"n": _MANY},
    ),
    # Text
    Family(
        "count_letter(text)",
        "Return how often the letter '$c' occurs in the text.",
        "text.count('$c')",
        _text,
        {"c": _LETTERS},
    ),
    Family(
        "without_letter(text)",
        "Return the text without the letter '$c'.",
        "text.replace('$c', '')",
        _text,
        {"c": _LETTERS},
    ),
    Family(
        "long_words(text)",
        "Return a list of the words in the text that are longer than $n letters.",
        "[w for w in text.split() if len(w) > $n]",
        _text,
        {"n": range(1, 8)},
    ),
    Family(
        "starting_with(words)",
        "Return a list of the words that start with '$c'.",
        "[w for w in words if w.startswith('$c')]",
        _words,
        {"c": _LETTERS},
    ),
    Family(
        "repeat_text(text)",
        "Return the text repeated $n times.",
        "text * $n",
        _one_word,
        {"n": _MANY},
    ),
    Family(
        "ends_with(text)",
        "Return True if the text ends with '$c'.",
        "text.endswith('$c')",
        _one_word,
        {"c": _LETTERS},
    ),
    Family(
        "first_letters(text)",
        "Return the first $n characters of the text in upper case.",
        "text[:$n].upper()",
        _one_word,
        {"n": range(1, 9)},
    ),
    Family(
        "replace_letter(text)",
        "Return the text with each '$a' replaced by '$b'.",
        "text.replace('$a', '$b')",
        _text,
        {"a": "aeo", "b": "xyz"},
    ),
    # Numbers
    Family(
        "is_between(x)",
        "Return True if x is between $a and $b, both included.",
        "$a <= x <= $b",
        _number(),
        {"a": (0, 5, 10), "b": (50, 80, 100)},
    ),
    Family(
        "clamp(x)",
        "Limit x to the range from $a to $b.",
        "max($a, min($b, x))",
        _number(),
        {"a": (0, 5, 10), "b": (50, 80, 100)},
    ),
    Family(
        "is_divisible(x)",
        "Return True if x is divisible by $n.",
        "x % $n == 0",
        _number(60),
        {"n": range(2, 12)},
    ),
    Family(
        "line(x)",
        "Return $a times x plus $b.",
        "$a * x + $b",
        _number(),
        {"a": (2, 3, 5, 7), "b": (1, 4, 6, 9)},
    ),
    Family("square_plus(x)", "Return x squared plus $n.", "x**2 + $n", _number(), {"n": _MANY}),
    # Families that are not used for training.
    Family(
        "smallest(numbers)",
        "Return the $n smallest numbers, in ascending order.",
        "sorted(numbers)[:$n]",
        _numbers(),
        {"n": range(1, 9)},
        new=True,
    ),
    Family(
        "less_than(numbers)",
        "Return a list of the numbers that are less than $n.",
        "[x for x in numbers if x < $n]",
        _numbers(),
        {"n": _MANY},
        new=True,
    ),
    Family(
        "count_below(numbers)",
        "Return how many numbers are less than $n.",
        "sum(x < $n for x in numbers)",
        _numbers(),
        {"n": _MANY},
        new=True,
    ),
    Family(
        "sum_without(numbers)",
        "Return the sum of all numbers that are not equal to $n.",
        "sum(x for x in numbers if x != $n)",
        _numbers(9),
        {"n": range(1, 9)},
        new=True,
    ),
    Family(
        "without_value(items)",
        "Return a list of all items except $n.",
        "[x for x in items if x != $n]",
        _numbers(9),
        {"n": range(1, 9)},
        new=True,
    ),
    Family(
        "subtract_each(numbers)",
        "Subtract $n from each number and return the new list.",
        "[x - $n for x in numbers]",
        _numbers(),
        {"n": _MANY},
        new=True,
    ),
    Family(
        "ending_with(words)",
        "Return a list of the words that end with '$c'.",
        "[w for w in words if w.endswith('$c')]",
        _words,
        {"c": _LETTERS},
        new=True,
    ),
    Family(
        "short_words(text)",
        "Return a list of the words in the text that have fewer than $n letters.",
        "[w for w in text.split() if len(w) < $n]",
        _text,
        {"n": range(2, 8)},
        new=True,
    ),
    Family(
        "contains(text)",
        "Return True if the text contains '$c'.",
        "'$c' in text",
        _one_word,
        {"c": _LETTERS},
        new=True,
    ),
    Family(
        "cube_minus(x)", "Return x cubed minus $n.", "x**3 - $n", _number(), {"n": _MANY}, new=True
    ),
)
