r"""What sympy takes for equal and is not, and what it takes for different forms and is equal."""

import itertools
import re

import sympy
from latex2sympy2_extended.sets import FiniteSet as ListOrSet  # keeps order and repetition, unlike sympy's
from math_verify.grader import sort_key
from sympy.core.relational import Relational
from sympy.logic.boolalg import Boolean

from cw_plugin.lab.rewards.reading import Parsed, leaves_unknown, left_sides, right_sides
from cw_plugin.lab.rewards.rewrites import EITHER

_TUPLE = (sympy.Tuple, sympy.Interval)  # (1, 2) is read as an interval
_INEQUALITY = (sympy.Gt, sympy.Ge, sympy.Lt, sympy.Le, sympy.Ne)
_LETTERS_IN_ORDER = re.compile(r"(?i:xyz?|abc?d?)|([a-zA-Z])_1\1_2(?:\1_3)?")
_SET_AND_MORE = re.compile(r"\\\}\s*[,;]")  # the end of a set, and something after it


def are_other_kinds(gold: Parsed, value: Parsed, ground_truth: str, answer: str) -> bool:
    """Whether they differ in what sympy does not tell apart.

    They have other left sides, which sympy cannot read; they nest or list sets in other ways; one has a capital letter
    for a small one; one is an inequality, and the other some numbers; one is a tuple, whose order counts, and the other
    a set; the ground truth is 1, and the answer a percentage; or the answer does not say what its unknown is, or has
    two values for it where one point is asked for.
    """
    lefts = left_sides(ground_truth), left_sides(answer)
    of_points = ["," in "".join(left) for left in lefts]  # (x, y) = (1, 2) says the same as x = 1, y = 2
    are_compared_later = gold.has(sympy.Eq) and value.has(sympy.Eq)
    if all(lefts) and lefts[0] != lefts[1] and of_points[0] == of_points[1] and not are_compared_later:
        return True  # P(A \cup B) = 1/6 for P(A \cap B) = 1/6
    if _shape_of_sets(right_sides(ground_truth)) != _shape_of_sets(right_sides(answer)):
        return True
    names, others = (sorted(str(symbol) for symbol in side.free_symbols) for side in (gold, value))
    if names != others and sorted(map(str.casefold, names)) == sorted(map(str.casefold, others)):
        return True
    if _leaves_letters_open(gold, value, ground_truth, answer):
        return True
    for one, other, text_of_other in ((gold, value, answer), (value, gold, ground_truth)):
        if _is_range(one) and _is_of_numbers(other):
            return True
        if isinstance(one, _TUPLE) and text_of_other.startswith(r"\{"):
            return True
    return bool(gold == 1 and "%" in answer)


def _shape_of_sets(text: str) -> tuple[bool, bool]:
    """Whether a set lies within another one, and whether something is listed after a set."""
    steps = [1 if brace == r"\{" else -1 for brace in re.findall(r"\\[{}]", text)]
    is_nested = max(itertools.accumulate(steps), default=0) > 1
    return is_nested, _SET_AND_MORE.search(text) is not None


def _leaves_letters_open(gold: Parsed, value: Parsed, ground_truth: str, answer: str) -> bool:
    """Whether the answer has equations for letters, of which the ground truth has values."""
    if leaves_unknown(answer) and not isinstance(gold, sympy.Eq):
        return True
    if isinstance(gold, _TUPLE) and _has_letter_twice(value):
        return True
    asks_for_values = isinstance(gold, _TUPLE) or ground_truth.startswith(r"\{")
    return asks_for_values and not gold.has(sympy.Eq) and _is_unsolved(value)


def _has_letter_twice(value: Parsed) -> bool:
    """Whether it has two values of a letter, as x = 1, x = 2."""
    letters = [part.lhs for part in _elements(value) if isinstance(part, sympy.Eq)]
    return len(set(letters)) < len(letters)


def _is_unsolved(value: Parsed) -> bool:
    """Whether it has several equations, and one of them has a sum or a power on its left, as x + y = 2, x - y = 3."""
    equations = [part for part in _elements(value) if isinstance(part, sympy.Eq)]
    return len(equations) > 1 and any(isinstance(part.lhs, (sympy.Add, sympy.Pow)) for part in equations)


def _is_range(value: Parsed) -> bool:
    """Whether it is an inequality or x in (1, 2); (1, 2) alone may be a point."""
    return value.has(*_INEQUALITY) or (isinstance(value, sympy.Eq) and isinstance(value.rhs, sympy.Interval))


def _is_of_numbers(value: Parsed) -> bool:
    """Whether it is a number or several, also as values of a letter."""
    value = value.rhs if isinstance(value, sympy.Eq) else value
    values = value.args if isinstance(value, sympy.FiniteSet) else [value]
    return all(isinstance(part.rhs if isinstance(part, sympy.Eq) else part, sympy.Expr) for part in values)


def in_one_form(gold: Parsed, value: Parsed, ground_truth: str, answer: str) -> tuple[Parsed, Parsed]:
    """Both in the form in which math-verify compares them rightly, if they are written in two."""
    pair = (
        _as_decimals(gold, value)
        or _as_ratios(gold, value, ground_truth, answer)
        or _as_regions(gold, value, ground_truth, answer)
        or _as_unions(gold, value, answer)
        or _as_solutions(gold, value)
        or _as_roots(gold, value)
        or _as_tuples(gold, value)
        or _with_repetitions(gold, value)
    )
    return pair or (gold, value)


def _as_decimals(gold: Parsed, value: Parsed) -> tuple[Parsed, Parsed] | None:
    """Of 3 and 2.9999999, math-verify would round only one."""
    numbers = (sympy.Integer, sympy.Float)
    if isinstance(gold, numbers) and isinstance(value, numbers) and gold.is_Float != value.is_Float:
        digits = 30 + len(str(int(gold)))
        return gold.evalf(digits), value.evalf(digits)
    return None


def _as_ratios(gold: Parsed, value: Parsed, ground_truth: str, answer: str) -> tuple[Parsed, Parsed] | None:
    """As quotients, if the ground truth is a ratio and no time, as 2:3, and the answer may be either, as 20:30."""
    if re.fullmatch(r"\d+:\d", ground_truth) and re.fullmatch(r"\d+:[1-9]\d", answer):
        return gold, sympy.Rational(answer.replace(":", "/"))
    return None


def _as_regions(gold: Parsed, value: Parsed, ground_truth: str, answer: str) -> tuple[Parsed, Parsed] | None:
    """As sets of numbers, if one is an inequality; if both are, in the same letter."""
    letters = [side.free_symbols for side in (gold, value) if side.has(*_INEQUALITY)]
    if not letters or letters[0] != letters[-1] or (isinstance(gold, sympy.Interval) and _may_be_point(gold)):
        return None
    of_gold, of_value = _region(gold, ground_truth), _region(value, answer)
    return None if of_gold is None or of_value is None else (of_gold, of_value)


def _as_unions(gold: Parsed, value: Parsed, answer: str) -> tuple[Parsed, Parsed] | None:
    r"""As unions, if one is a union, and the other lists intervals, as (-\infty, 1) or (2, \infty).

    In a ground truth, (1, 2), (3, 4) may be points.
    """
    if isinstance(gold, sympy.Union) and not answer.startswith(r"\{") and not _names_several(answer):
        return gold, _united(value)
    may_be_points = all(isinstance(part, sympy.Interval) and _may_be_point(part) for part in _elements(gold))
    if isinstance(value, sympy.Union) and not may_be_points:
        return _united(gold), value
    return None


def _names_several(answer: str) -> bool:
    """Whether it has several equations, as D = (1, 2), R = (3, 4)."""
    return answer.count("=") > 1


def _may_be_point(interval: sympy.Interval) -> bool:
    return bool(interval.is_open and interval.measure.is_finite)


def _united(value: Parsed) -> Parsed:
    """The union of a list of sets; any other value itself."""
    if isinstance(value, ListOrSet) and all(isinstance(part, sympy.Set) for part in value.args):
        return sympy.Union(*value.args)
    return value


def _region(value: Parsed, text: str) -> sympy.Set | None:
    """The numbers that satisfy an inequality such as x < 1; one of several, joined by EITHER; all of several; or a set.

    None if there is another letter, or none alone on one side.
    """
    value = value.rhs if isinstance(value, sympy.Eq) else value
    value = value if _names_several(text) else _united(value)
    if len(value.free_symbols) > 1:
        return None
    if isinstance(value, ListOrSet) and value.has(*_INEQUALITY):
        if not all(isinstance(part, Boolean) for part in value.args):
            return None
        both = sympy.And(*value.args)
        value = sympy.Or(*value.args) if EITHER.strip() in text or both.as_set().is_empty else both
    if not all(map(_compares_a_letter, value.atoms(Relational))):
        return None
    if isinstance(value, sympy.Set) and not isinstance(value, ListOrSet):
        return value
    return value.as_set() if value.has(*_INEQUALITY) and value.free_symbols else None


def _compares_a_letter(relation: Relational) -> bool:
    """Whether a letter stands alone on one of its sides, or a difference between bars, as |x - 1|."""
    are_letters = [isinstance(side, (sympy.Symbol, sympy.Abs)) for side in (relation.lhs, relation.rhs)]
    return are_letters.count(True) == 1


def _as_tuples(gold: Parsed, value: Parsed) -> tuple[Parsed, Parsed] | None:
    """As tuples, if one is a tuple, or if the ground truth gives letters their values and the answer values alone."""
    golds, values = _elements(gold), _elements(value)
    letters = {str(part.lhs).partition("_")[0] for part in golds if isinstance(part, sympy.Eq)}
    has_values_alone = not value.has(sympy.Eq)
    if 1 < len(letters) == len(golds) and has_values_alone:  # x = 1, y = 2; unlike x_1 = 1, x_2 = 2
        return sympy.Tuple(*(part.rhs for part in golds)), sympy.Tuple(*values) if len(values) > 1 else value
    if isinstance(gold, _TUPLE) and len(values) > 1 and all(isinstance(part, sympy.Eq) for part in values):
        return gold, _point({str(part.lhs): part.rhs for part in values})
    if len(golds) > 1 and isinstance(value, _TUPLE):
        return sympy.Tuple(*golds), value
    if len(values) > 1 and isinstance(gold, _TUPLE) and has_values_alone:
        return gold, sympy.Tuple(*values)
    return None


def _as_solutions(gold: Parsed, value: Parsed) -> tuple[Parsed, Parsed] | None:
    """As sets of points, if one has several solutions: x = 1, y = 2 or x = 3, y = 4, which has no point (1, 4)."""
    golds, values = _solutions(gold), _solutions(value)
    if not golds and not values:
        return None
    if golds and values and golds[0].keys() == values[0].keys():
        return ListOrSet(*map(_by_letter, golds)), ListOrSet(*map(_by_letter, values))
    of_gold = ListOrSet(*map(_point, golds)) if golds else _with_tuples(gold)
    of_value = ListOrSet(*map(_point, values)) if values else _with_tuples(value)
    return of_gold, of_value


def _as_roots(gold: Parsed, value: Parsed) -> tuple[Parsed, Parsed] | None:
    """As lists of numbers, if only one numbers its values of a letter: x_1 = 3, x_2 = -5 and x = 3, x = -5."""
    sides = _elements(gold), _elements(value)
    if not all(isinstance(part, sympy.Eq) and part.lhs.is_Symbol for side in sides for part in side):
        return None
    names = [{str(part.lhs) for part in side} for side in sides]
    letters = {name.partition("_")[0] for name in names[0] | names[1]}
    if len(letters) > 1 or letters not in names or not 1 < len(sides[0]) == len(sides[1]):
        return None  # a = 3 is not a_2 = 3
    gold, value = (ListOrSet(*(part.rhs for part in side)) for side in sides)
    return _with_repetitions(gold, value) or (gold, value)


def _solutions(value: Parsed) -> list[dict[str, Parsed]]:
    """The values of the letters in each solution, if there are several for several letters, with indices or without."""
    parts = [part.args if isinstance(part, sympy.Tuple) else [part] for part in _elements(value)]
    equations = [*itertools.chain.from_iterable(parts)]
    if not all(isinstance(equation, sympy.Eq) for equation in equations):
        return []
    values = [(str(equation.lhs).partition("_")[0], equation.rhs) for equation in equations]
    size = len(dict(values))
    solutions = [dict(values[start : start + size]) for start in range(0, len(values), size)]
    is_complete = all(len(solution) == size for solution in solutions)
    return solutions if size > 1 and len(solutions) > 1 and is_complete else []


def _by_letter(values: dict[str, Parsed]) -> sympy.Tuple:
    return sympy.Tuple(*(values[letter] for letter in sorted(values)))


def _point(values: dict[str, Parsed]) -> sympy.Tuple:
    """The values of letters: y = 2, x = 1 is the point (1, 2), and so is x_2 = 2, x_1 = 1."""
    is_alphabetical = _LETTERS_IN_ORDER.fullmatch("".join(sorted(values))) is not None
    return _by_letter(values) if is_alphabetical else sympy.Tuple(*values.values())


def _with_tuples(value: Parsed) -> Parsed:
    """A list of points, of which (1, 2) is read as an interval; any other value itself."""
    if not isinstance(value, ListOrSet):
        return value
    are_points = [isinstance(part, sympy.Interval) and _may_be_point(part) for part in value.args]
    points = zip(value.args, are_points, strict=True)
    return ListOrSet(*(sympy.Tuple(part.start, part.end) if is_point else part for part, is_point in points))


def _with_repetitions(gold: Parsed, value: Parsed) -> tuple[Parsed, Parsed] | None:
    """As sorted tuples, if the ground truth has an element twice."""
    golds, values = _elements(gold), _elements(value)
    if len(set(golds)) == len(golds):
        return None
    in_order = [sympy.Tuple(*sympy.ordered(side, keys=sort_key, default=False)) for side in (golds, values)]
    return in_order[0], in_order[1]


def _elements(value: Parsed) -> list[Parsed]:
    """What a list or a set has, as it stands there; of another value, itself."""
    return list(value._unsorted_args) if isinstance(value, ListOrSet) else [value]
