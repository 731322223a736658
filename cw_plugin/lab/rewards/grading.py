r"""Grading one answer with math-verify, within the limits of :mod:`cw_plugin.lab.rewards.worker`.

What stands here refuses what math-verify accepts, and is not the answer. README.md has the decisions.
"""

import functools
import itertools
import re

import sympy
from latex2sympy2_extended.sets import FiniteSet
from math_verify import verify
from math_verify.grader import is_equation, sort_key, take_last_relation
from sympy.core.relational import Relational
from sympy.logic.boolalg import Boolean

from cw_plugin.lab.rewards.boxed import final_boxed
from cw_plugin.lab.rewards.reading import Answer, Parsed, choices, found_in, leaves_unknown, parsed, read, right_sides

MAX_ANSWER = 2_000  # characters; the longest ground truth of the paper's data has about 250
DECIMALS = {"training": 6, "evaluation": 5}

_OTHER_NUMBER = re.compile(  # words, without a last s, that make another number of the one beside them
    r"(?<!\^)(?<!\^-)\d|\b(?:squared|cubed|factorial|hal(?:f|ve)|quarter|third|(?:four|fif|six|seven|eigh|nin|ten|eleven"
    r"|twelf|\w+teen|\w+tie|hundred|thousand)th|dozen|pair|couple|score|gross|twice|double|triple|ten|hundred|thousand"
    r"|\w+illion|lakh|crore|base|mod|at|than|less|more|fewer|greater|over|under|up|minu|negative|plu|without|except"
    r"|excluding|but|doubled|halved|(?:root|square|cube|multiple|inverse|reciprocal|opposite) of|no|none|not|cannot"
    r"|never|below|above|and|or|so)s?\b"
    r"|[\u2030\u500d\u534a\u591a\u4f59\u4e0a\u4e0b\u7ea6\u81f3\u6216\u548c\u4e0d\u8d1f\u8ca0\u6298\u6253\u9664\u975e\u8d85]"
    r"|\u6839[\u53f7\u865f]|\u7684[\u5e73\u7acb]\u65b9|\u6b21\u65b9|[\u5927\u5c0f\u5c11\u9ad8\u4f4e]\u4e8e"
)
_LAYOUT = re.compile(r"\{(\w)\}|(?<!,)\s+|(?<=\\)[dt](?=frac)")  # of no meaning
_DECIMAL_COMMA = re.compile(r"^(-?(?![1-9]\d{0,2},\d{3}$)\d+),(?=\d+$)")  # that of 1,222 stands between thousands
_COMPUTED = re.compile(  # by latex2sympy as it reads
    r"binom\s*\{?\d|\\choose|\\det|vmatrix|\\(?:gcd|lcm)|frac\s*\{[^}]*\\frac|e\s*\^\s*\{?\\l(?:n|og)"
)
_LISTS_SETS = re.compile(r"\\\}\s*[,;]")  # the end of a set, and something after it
_ORDERED, _DECIMAL = (sympy.Tuple, sympy.Interval), (sympy.Integer, sympy.Float)  # (1, 2) is read as an interval
_INEQUALITY = (sympy.Gt, sympy.Ge, sympy.Lt, sympy.Le, sympy.Ne)
_UNDONE = (sympy.Symbol, sympy.MatAdd, sympy.MatMul, sympy.Sum, sympy.Product, sympy.Integral, sympy.Limit)


def grade(ground_truth: str, text: str, extraction: str) -> tuple[float, str]:
    """1.0 or 0.0, and the answer as it stands in the text ("" when there is none)."""
    boxed = final_boxed(text)
    answer = found_in(text, extraction) if boxed is None else boxed
    if not answer or len(answer) > MAX_ANSWER:
        return 0.0, answer
    is_sentence = boxed is None and extraction == "evaluation"
    expected = final_boxed(ground_truth) or ground_truth
    return float(_is_right(expected, answer, DECIMALS[extraction], is_sentence)), answer


@functools.lru_cache(maxsize=4096)  # responses to one prompt often repeat an answer
def _is_right(ground_truth: str, answer: str, decimals: int, is_sentence: bool) -> bool:
    """Whether the answer is right; of a choice with its text, as (B) 12, either is enough, and none may be wrong."""
    equal = functools.partial(_is_equal, decimals=decimals, is_sentence=is_sentence)
    meant, picked = choices(ground_truth), choices(answer)
    if len(meant) == len(picked):
        return all(map(equal, meant, picked))
    return any(equal(gold, part) for gold in meant for part in picked)


def _is_equal(ground_truth: str, answer: str, decimals: int, is_sentence: bool) -> bool:
    """Whether the answer equals the ground truth, names no other unit, and leaves no more to be worked out than it."""
    expected, given = read(ground_truth), read(answer)
    if _speak_of_others(expected, given):
        return False
    if not expected.text or not given.text:
        return bool(expected.said) and expected.said == given.said
    if _are_alike(expected.text, given.text):
        return True
    gold, value = parsed(expected.text), parsed(given.text)
    if gold is None or value is None:
        return gold is value and expected.symbols == given.symbols
    if _are_other_kinds(gold, value, expected.text, given.text):
        return False
    gold, value = _alike(gold, value, expected.text, given.text)
    if not _is_worked_out(gold, value, is_sentence) or not _computed(given.text) <= _computed(expected.text):
        return False
    decimals = _decimals(gold, value, decimals)
    is_equal = verify(gold, value, float_rounding=decimals, numeric_precision=max(15, decimals), timeout_seconds=None)
    if is_equal and isinstance(gold, sympy.Eq) and isinstance(value, sympy.Eq):
        # Their ratio must be a number: x^2 y = 0 and x y = 0 only have the same solutions.
        return not sympy.cancel((gold.lhs - gold.rhs) / (value.lhs - value.rhs)).free_symbols
    return bool(is_equal)


def _speak_of_others(expected: Answer, given: Answer) -> bool:
    """Whether they name other things or units, or sets of numbers; a mere unit may be on one side only."""
    if any(a and b and a != b for a, b in ((expected.name, given.name), (expected.domain, given.domain))):
        return True
    if expected.conditions != given.conditions:
        return True
    if (expected.domain ^ given.domain) - {"R"} and re.search(r"[<>]|\\[lg]e", expected.text + given.text):
        return True  # x > 2 holds for other numbers than x > 2, x \in \mathbb{Z}
    sides = right_sides(expected.text), right_sides(given.text)
    is_of_angle = re.search(r"\\(?:sin|cos|tan|cot|sec|csc)", "".join(sides))
    if ("degree" in expected.words) != ("degree" in given.words) and is_of_angle:
        return True
    words = [expected.words, given.words]
    percentages = [side.count(r"\%") for side in sides]
    if all(percentages) and percentages[0] != percentages[1]:
        return True
    if (r"\%" in expected.text) != (r"\%" in given.text):
        words = [side.words or ("%" if r"\%" in side.text else "") for side in (expected, given)]
    are_other = words[0] != words[1] and bool(all(words) or _OTHER_NUMBER.search("".join(words)))
    return are_other and bool(expected.text and given.text)


def _are_alike(ground_truth: str, answer: str) -> bool:
    """Whether they are the same but for layout, a percent sign, or a decimal comma: 1,2 may also be two numbers."""
    ground_truth, answer = _LAYOUT.sub(r"\1", ground_truth), _LAYOUT.sub(r"\1", answer)
    without_sign = ground_truth.replace(r"\%", "")
    return answer in (ground_truth, without_sign) or (
        "." in ground_truth and _DECIMAL_COMMA.sub(r"\1.", answer) == ground_truth
    )


def _are_other_kinds(gold: Parsed, value: Parsed, ground_truth: str, answer: str) -> bool:
    """Whether they differ in what sympy does not tell apart.

    One is a tuple, whose order counts, and the other a set; or they have other sets within sets, or a capital letter
    for a small one; one is an inequality, and the other some numbers; one is 1, and the other a percentage; or the
    answer does not say what its unknown is.
    """
    wanted, found = right_sides(ground_truth), right_sides(answer)
    if _has_sets_within(wanted) != _has_sets_within(found):
        return True
    if (_LISTS_SETS.search(wanted) is None) != (_LISTS_SETS.search(found) is None):
        return True
    names, others = (sorted(str(symbol) for symbol in side.free_symbols) for side in (gold, value))
    if names != others and sorted(map(str.casefold, names)) == sorted(map(str.casefold, others)):
        return True
    if any(_is_range(one) and _is_of_numbers(other) for one, other in ((gold, value), (value, gold))):
        return True
    if leaves_unknown(answer) and not isinstance(gold, sympy.Eq):
        return True
    if isinstance(gold, _ORDERED) and answer.startswith(r"\{"):
        return True
    if isinstance(value, _ORDERED) and ground_truth.startswith(r"\{"):
        return True
    return bool(gold == 1 and "%" in answer)


def _has_sets_within(text: str) -> bool:
    """Whether a set lies within another one."""
    steps = [1 if brace == r"\{" else -1 for brace in re.findall(r"\\[{}]", text)]
    return max(itertools.accumulate(steps), default=0) > 1


def _is_range(value: Parsed) -> bool:
    """Whether it is an inequality or x in (1, 2); (1, 2) alone may be a point."""
    return value.has(*_INEQUALITY) or (isinstance(value, sympy.Eq) and isinstance(value.rhs, sympy.Interval))


def _is_of_numbers(value: Parsed) -> bool:
    """Whether it is a number or several, also as values of a letter."""
    value = value.rhs if isinstance(value, sympy.Eq) else value
    values = value.args if isinstance(value, sympy.FiniteSet) else [value]
    return all(isinstance(part.rhs if isinstance(part, sympy.Eq) else part, sympy.Expr) for part in values)


def _computed(text: str) -> set[str]:
    return set(_COMPUTED.findall(right_sides(text)))


def _is_worked_out(gold: Parsed, value: Parsed, is_sentence: bool) -> bool:
    """Whether the answer leaves no operation that the ground truth does not leave; sums of letters may stay."""
    kept = _left(gold)
    if is_sentence:  # lighteval takes a sum as well, as in "the answer is $9+1$"
        kept = kept | {sympy.Add, sympy.MatAdd, sympy.MatMul}
    if sympy.Symbol in kept or (isinstance(gold, sympy.Eq) and not gold.lhs.is_Symbol):
        kept = kept | {sympy.Symbol, sympy.Add, sympy.Mul, sympy.Pow}
    return _left(value) <= kept


def _left(value: Parsed) -> set[type]:
    r"""What is left to be worked out: operations on numbers with a rational result, as 37 \cdot 43; sums; letters."""
    if is_equation(value):
        return _left(take_last_relation(value).rhs)
    left: set[type] = set().union(*map(_left, value.args))
    if isinstance(value, _UNDONE) or _is_undone(value):
        left.add(type(value))
    return left


def _is_undone(value: Parsed) -> bool:
    r"""Whether the outermost operation is one on numbers that has a rational result, and is not just a way to write it.

    Written out are 3 \cdot 10^5, 50\% and 1.5/2: a number, and at most one power or denominator.
    """
    numbers = [part for part in value.args if part not in (1, -1) and _is_rational(part)]
    if isinstance(value, sympy.Mul):
        powers = [part for part in numbers if isinstance(part, (sympy.Pow, sympy.UnevaluatedExpr))]
        if len(powers) > 1 or len(numbers) - len(powers) > 1:
            return True
        return not all(map(_is_rational, value.args)) and _is_rational(value)
    if isinstance(value, sympy.Pow) and (value.base == 10 or value.exp == -1):
        is_written_out = value.exp.is_Integer and isinstance(value.base, _DECIMAL)
        return _is_rational(value) and not is_written_out
    if isinstance(value, sympy.Add) and len(numbers) > 1:
        return True
    return bool(value.args) and not isinstance(value, sympy.UnevaluatedExpr) and _is_rational(value)


def _is_rational(value: Parsed) -> bool:
    """Whether it is a number with a rational value, decimals included."""
    if not isinstance(value, sympy.Expr) or not value.is_number:
        return False
    exact = sympy.nsimplify(value, rational=True).doit().expand() if value.is_rational is None else value
    return bool(exact.is_rational)


def _alike(gold: Parsed, value: Parsed, ground_truth: str, answer: str) -> tuple[Parsed, Parsed]:
    """Both in one form: decimals if one is, sets if one is an inequality, tuples if order or repetition counts."""
    if isinstance(gold, _DECIMAL) and isinstance(value, _DECIMAL) and gold.is_Float != value.is_Float:
        return gold.evalf(30), value.evalf(30)  # of 3 and 2.9999999, math-verify would round only one
    regions = _region(gold, ground_truth), _region(value, answer)
    letters = [side.free_symbols for side in (gold, value) if side.has(*_INEQUALITY)]
    is_point = isinstance(gold, sympy.Interval) and gold.is_open and gold.measure.is_finite
    if None not in regions and letters and letters[0] == letters[-1] and not is_point:
        return regions
    golds, values = (side._unsorted_args if isinstance(side, FiniteSet) else [side] for side in (gold, value))
    names = {str(part.lhs).partition("_")[0] for part in golds if isinstance(part, sympy.Eq)}
    if 1 < len(names) == len(golds) and not value.has(sympy.Eq):  # unlike x_1 = 1, x_2 = 2
        return sympy.Tuple(*(part.rhs for part in golds)), sympy.Tuple(*values) if len(values) > 1 else value
    if len(golds) > 1 and isinstance(value, _ORDERED):
        return sympy.Tuple(*golds), value
    if len(values) > 1 and isinstance(gold, _ORDERED) and not value.has(sympy.Eq):
        return gold, sympy.Tuple(*values)
    if len(set(golds)) < len(golds):
        gold, value = (sympy.Tuple(*sympy.ordered(side, keys=sort_key, default=False)) for side in (golds, values))
    return gold, value


def _region(value: Parsed, text: str) -> sympy.Set | None:
    """The numbers for which an inequality holds, or several, either of which (;) or all of which; or the set itself."""
    value = value.rhs if isinstance(value, sympy.Eq) else value
    if len(value.free_symbols) > 1:
        return None
    if isinstance(value, FiniteSet) and value.has(*_INEQUALITY):
        if not all(isinstance(part, Boolean) for part in value.args):
            return None
        both = sympy.And(*value.args)
        value = sympy.Or(*value.args) if ";" in text or both.as_set().is_empty else both
    relations = value.atoms(Relational)
    if not all({side.is_Symbol for side in relation.args} == {True, False} for relation in relations):
        return None
    if isinstance(value, sympy.Set) and not isinstance(value, FiniteSet):
        return value
    return value.as_set() if value.has(*_INEQUALITY) and value.free_symbols else None


def _decimals(gold: Parsed, value: Parsed, decimals: int) -> int:
    """How many decimals count: at least ``decimals``, and enough for four digits of the smallest number."""
    parts = [*sympy.preorder_traversal(gold), *sympy.preorder_traversal(value)]
    sizes = [abs(part.evalf()) for part in parts if isinstance(part, sympy.Expr) and part.is_number]
    return max([decimals, *(3 - int(sympy.floor(sympy.log(size, 10))) for size in sizes if size.is_Float and size)])
