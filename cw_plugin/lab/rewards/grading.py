r"""Grading one answer with math-verify, within the limits of :mod:`cw_plugin.lab.rewards.worker`.

What math-verify does not tell apart is told apart here and in the modules beside. README.md has the decisions.
"""

import functools
import re

import sympy
from math_verify import verify

from cw_plugin.lab.rewards.boxed import final_boxed
from cw_plugin.lab.rewards.forms import are_other_kinds, in_one_form
from cw_plugin.lab.rewards.reading import Answer, Parsed, choices, parsed, parts, read, said, symbols, with_each_letter
from cw_plugin.lab.rewards.unboxed import found_in
from cw_plugin.lab.rewards.units import are_other_units, is_said_before_another_number
from cw_plugin.lab.rewards.worked_out import computed_by_reading, is_worked_out

MAX_ANSWER = 2_000  # characters; the longest ground truth of the paper's data has about 250
DECIMALS = {"training": 6, "evaluation": 5}

_LAYOUT = re.compile(  # {2} is 2, \dfrac is \frac, and spaces mean nothing but between numbers
    r"\{(\w)\}|(?<![,\d])\s+|(?<=\d)\s+(?!\d)|(?<=\\)[dt](?=frac)"
)
_DECIMAL_COMMA = re.compile(r"^(-?(?![1-9]\d{0,2},\d{3}$)\d+),(?=\d+$)")  # in 1,222 it stands between thousands
_PERCENTAGE = re.compile(r"-?(?!1\.0*\\)[1-9]\d*\.\d+\\%")  # 12.5\%, but not 1.0\% and 0.5\%
_RESTRICTED = re.compile(r"\b(?:odd|even|prime|composite|integer)\b")
_LEFT_SIDE = re.compile(  # "f(x) =", "\vec{v} ="
    r"\s*(?:\\(?:vec|hat|bar|overrightarrow|mathcal)(?![a-zA-Z])\s*)?\{?\s*[a-zA-Z](?:_\{?\w+\}?)?\s*\}?(?:\s*\(\w\))?\s*=(?!=)"
)


def grade(ground_truth: str, text: str, extraction: str) -> tuple[float, str]:
    """1.0 or 0.0, and the answer as it stands in the text ("" when there is none)."""
    boxed = final_boxed(text)
    answer = found_in(text, extraction) if boxed is None else boxed
    if not answer or len(answer) > MAX_ANSWER:
        return 0.0, answer
    may_leave_sum = boxed is None and extraction == "evaluation"  # lighteval takes "the answer is $9+1$"
    expected = final_boxed(ground_truth) or ground_truth
    return float(_is_right(expected, answer, DECIMALS[extraction], may_leave_sum)), answer


@functools.lru_cache(maxsize=4096)  # responses to one prompt often repeat an answer
def _is_right(ground_truth: str, answer: str, decimals: int, may_leave_sum: bool) -> bool:
    """Whether the answer is right; of a choice with its text, as (B) 12, either is enough, and none may be wrong."""
    equal = functools.partial(_is_equal, decimals=decimals, may_leave_sum=may_leave_sum)
    meant, picked = choices(ground_truth), choices(answer)
    if len(meant) == len(picked):
        return all(map(equal, meant, picked))
    return any(equal(gold, part) for gold in meant for part in picked)


def _is_equal(ground_truth: str, answer: str, decimals: int, may_leave_sum: bool) -> bool:
    forms = {answer}
    if "," in ground_truth + answer:  # x = y = 1 is the point (1, 1); but b is 5 in a = b = 5
        ground_truth, forms = with_each_letter(ground_truth), {answer, with_each_letter(answer)}
    return any(_are_equal(read(ground_truth), read(form), decimals, may_leave_sum) for form in forms)


def _are_equal(expected: Answer, given: Answer, decimals: int, may_leave_sum: bool) -> bool:
    """Whether the answer equals the ground truth, names no other unit, and leaves no more to be worked out than it."""
    pairs = _pairs_of_named_values(expected, given)
    if pairs:
        return all(_are_equal(gold, value, decimals, may_leave_sum) for gold, value in pairs)
    if _hold_for_others(expected, given):
        return False
    if not expected.text or not given.text:
        return bool(said(expected.whole)) and said(expected.whole) == said(given.whole)
    if are_other_units(expected, given):
        return False
    if _are_the_same_text(expected.text, given.text):
        return True
    return _have_equal_values(expected.text, given.text, decimals, may_leave_sum)


def _pairs_of_named_values(expected: Answer, given: Answer) -> list[tuple[Answer, Answer]]:
    """What has to be equal, if the ground truth has several values with names of their own, as x = 1, y = 2.

    Values of the same names belong together. In an answer without these names, the order counts: 2, 1 is wrong.
    """
    golds = parts(expected)
    names = {part.name for part in golds}
    are_told_apart = len(names) == len(golds) and all(part.name and part.value.text for part in golds)
    if len(golds) < 2 or not are_told_apart:
        return []
    values = parts(given)
    by_name = dict(values)
    if len(golds) != len(values):
        return []
    if names == by_name.keys():
        return [(gold, by_name[name]) for name, gold in golds]
    without_indices = {name.partition(" _")[0] for name in names}
    has_some_of_them = {*map(str.casefold, names)} & {*map(str.casefold, by_name)}
    if has_some_of_them or len(without_indices) < len(names):  # x_1 and x_2 are roots, in any order
        return []
    return [(gold, part.value) for (_, gold), part in zip(golds, values, strict=True)]


def _have_equal_values(ground_truth: str, answer: str, decimals: int, may_leave_sum: bool) -> bool:
    gold, value = parsed(ground_truth), parsed(answer)
    if gold is None or value is None:
        return gold is None and value is None and _have_the_same_symbols(ground_truth, answer)
    if are_other_kinds(gold, value, ground_truth, answer):
        return False
    gold, value = in_one_form(gold, value, ground_truth, answer)
    computed = computed_by_reading(ground_truth)
    if not computed_by_reading(answer) <= computed:
        return False
    if not computed and not is_worked_out(gold, value, may_leave_sum):
        return False
    decimals = _decimals(gold, value, decimals)
    is_equal = verify(gold, value, float_rounding=decimals, numeric_precision=max(15, decimals), timeout_seconds=None)
    sides = gold.args + value.args
    if (
        is_equal
        and isinstance(gold, sympy.Eq)
        and isinstance(value, sympy.Eq)
        and all(isinstance(side, sympy.Expr) for side in sides)
    ):
        # Their ratio must be a number: x^2 y = 0 and x y = 0 only have the same solutions.
        return not sympy.cancel((gold.lhs - gold.rhs) / (value.lhs - value.rhs)).free_symbols
    return bool(is_equal)


def _hold_for_others(expected: Answer, given: Answer) -> bool:
    """Whether they name other things, or hold for other numbers."""
    if expected.name and given.name and expected.name != given.name:
        return True
    if any(r"\frac" in one.name and other.letters for one, other in ((expected, given), (given, expected))):
        return True  # y = 2x for \frac{dy}{dx} = 2x
    if expected.domain and given.domain and expected.domain != given.domain:
        return True
    if expected.name != given.name and is_said_before_another_number(expected.name + given.name):
        return True
    if expected.conditions != given.conditions:
        return True
    if given.letters and len(given.letters) < len(expected.letters):  # x = 0 for x = y = 0
        return True
    has_inequality = re.search(r"[<>]|\\[lg]e", expected.text + given.text)
    restricted = [_RESTRICTED.search(side.words) is not None for side in (expected, given)]
    if has_inequality and restricted[0] != restricted[1]:  # n > 5, n odd
        return True
    domain_of_one = (expected.domain ^ given.domain) - {"R"}
    return bool(has_inequality and domain_of_one)  # x > 2 holds for other numbers than x > 2, x \in \mathbb{Z}


def _are_the_same_text(ground_truth: str, answer: str) -> bool:
    """Whether they are the same but for layout, a percent sign, or a decimal comma: 1,2 may also be two numbers."""
    ground_truth, answer = _LAYOUT.sub(r"\1", ground_truth), _LAYOUT.sub(r"\1", answer)
    if answer in (ground_truth, ground_truth.replace(r"\%", "")):
        return True
    if _PERCENTAGE.fullmatch(answer) and answer.removesuffix(r"\%") == ground_truth:
        return True
    return "." in ground_truth and _DECIMAL_COMMA.sub(r"\1.", answer) == ground_truth


def _have_the_same_symbols(ground_truth: str, answer: str) -> bool:
    """Whether what math-verify cannot read is the same but for spaces, and a left side that only one of them has."""
    ends = [match.end() if match else 0 for match in map(_LEFT_SIDE.match, (ground_truth, answer))]
    if all(ends):
        ends = [0, 0]
    return symbols(ground_truth[ends[0] :]) == symbols(answer[ends[1] :])


def _decimals(gold: Parsed, value: Parsed, decimals: int) -> int:
    """How many decimals count: at least ``decimals``, and enough for four digits of the smallest number."""
    parts = [*sympy.preorder_traversal(gold), *sympy.preorder_traversal(value)]
    sizes = [abs(part.evalf()) for part in parts if isinstance(part, sympy.Expr) and part.is_number]
    return max([decimals, *(3 - int(sympy.floor(sympy.log(size, 10))) for size in sizes if size.is_Float and size)])
