r"""Grading one answer with math-verify: the code that runs in the worker processes.

README.md has the decisions: where the answer is, and what is equal.

math-verify limits its own time with ``signal.alarm``, which needs the main thread and cannot stop a loop in C. Here its
timeouts are off, and :mod:`cw_plugin.rewards.worker` limits the process.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Sequence
from typing import Any

import sympy
from latex2sympy2_extended import NormalizationConfig
from latex2sympy2_extended.sets import FiniteSet
from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify
from sympy.core.relational import Relational

from cw_plugin.rewards.boxed import PERCENT, final_boxed, normalize, point_for_comma
from cw_plugin.rewards.forms import BRACKETS, last_side, operations, split_bases, units_agree

MAX_ANSWER = 2_000  # characters; the longest ground truth of the paper's data has about 250
MAX_DEPTH = 24  # brackets within brackets; math-verify's grammar needs seconds for 50
MAX_TEXT = 4_000  # characters searched when nothing is boxed; math-verify's patterns take more than linear time

RELATIVE_TOLERANCE = 1e-3

_UNITS_AS_WORDS = re.compile(r"\\text|\\mathrm|\\mbox|(?<![\\a-zA-Z])[a-zA-Z]{2,}")
_PLUS_MINUS = re.compile(r"\\pm(?![a-zA-Z])")


def _latex(**normalization: Any) -> LatexExtractionConfig:
    config = {"basic_latex": True, "units": True, "malformed_operators": True, "nits": True, "boxed": "all"}
    return LatexExtractionConfig(
        normalization_config=NormalizationConfig(**{**config, **normalization}), boxed_match_priority=0
    )


_BOXED = {units: (_latex(units=units),) for units in (False, True)}
# open-rs, src/open_r1/rewards.py, accuracy_reward; src/open_r1/evaluate.py, latex_gold_metric and expr_gold_metric.
_UNBOXED = {
    "training": (LatexExtractionConfig(try_extract_without_anchor=False, boxed_match_priority=0),),
    "evaluation": (ExprExtractionConfig(), _latex()),
}
_FLOAT_ROUNDING = {"training": 6, "evaluation": 5}  # decimals


def grade(ground_truth: str, text: str, extraction: str) -> tuple[float, str]:
    """Extract the answer of ``text`` and compare it with the ground truth.

    Returns:
        1.0 or 0.0, and the answer as it stands in the text ("" when there is none).
    """
    answer = final_boxed(text)
    if answer is not None:
        if len(answer) > MAX_ANSWER:
            return 0.0, answer
        return _grade_boxed(ground_truth, answer, extraction), answer
    tail = text[-MAX_TEXT:]
    parsed = _parse(tail, _UNBOXED[extraction]) if _depth(tail) <= MAX_DEPTH else []
    prediction = next((item for item in parsed if isinstance(item, str)), "")
    expected, base = split_bases(_normal_ground_truth(ground_truth))
    gold = _parse_ground_truth(expected)
    if not gold or not parsed or (base and split_bases(prediction)[1] != base):
        return 0.0, prediction
    values = [gold, _hundredth(gold)] if PERCENT.search(ground_truth) else [gold]  # parsed: 50% is already 1/2
    # Of a sentence, lighteval's extraction takes a sum as well, as in "the answer is $9+1$".
    also = {"sum", "matrices"} if extraction == "evaluation" else set()
    equal = any(_compare(value, parsed, extraction) for value in values)
    return float(equal and _same_form(expected, gold[0], prediction, parsed[0], also)), prediction


@functools.lru_cache(maxsize=4096)  # responses to one prompt often repeat an answer
def _grade_boxed(ground_truth: str, answer: str, extraction: str) -> float:
    (expected, base), (given, given_base) = (
        split_bases(_normal_ground_truth(ground_truth)),
        split_bases(normalize(answer)),
    )
    if base and given_base != base:
        return 0.0
    gold = _parse_ground_truth(point_for_comma(expected, given))
    parsed = gold and _parse_answer(point_for_comma(given, expected), units=not gold[0].free_symbols)
    if not parsed:
        return 0.0
    pairs: list[tuple[Sequence[Any], Sequence[Any]]] = [(gold, parsed)]
    signs = bool(PERCENT.search(ground_truth)), bool(PERCENT.search(answer))
    if signs == (True, False):  # 50 and 0.5 are both right for 50%
        pairs.append((_hundredth(gold), parsed))
    elif signs == (False, True):
        # The sign means nothing where the ground truth is a percentage without it, so more than 1.
        without_sign = gold[0].is_number and abs(gold[0]) <= 1
        pairs = [(gold, _hundredth(parsed))] + ([] if without_sign else pairs)
    equal = any(_compare(*pair, extraction) for pair in pairs)
    return float(equal and _same_form(expected, gold[0], given, parsed[0]))


def _hundredth(parsed: Sequence[Any]) -> list[Any]:
    """Numbers read from a text with a percent sign, which is left out while reading; empty if these are no numbers."""
    return [value / 100 for value in parsed[:1] if isinstance(value, sympy.Expr) and value.is_number]


def _same_form(expected: str, gold: Any, given: str, answer: Any, also: Collection[str] = ()) -> bool:
    """Whether an equal answer names no other unit, and leaves to be worked out only what the gold one does."""
    if not isinstance(gold, sympy.Eq):
        given = last_side(given)
    allowed = operations(expected, gold).union(also, {"irrational"} if gold.free_symbols else ())
    return units_agree(expected, given) and operations(given, answer) <= allowed


def _normal_ground_truth(ground_truth: str) -> str:
    return normalize(final_boxed(ground_truth) or ground_truth)


@functools.lru_cache(maxsize=4096)
def _parse_ground_truth(answer: str) -> tuple[Any, ...]:
    """The ground truth as mathematics, at most one object; empty when it does not parse."""
    as_is, without_units = _parse_answer(answer, units=False), _parse_answer(answer, units=True)
    is_number_with_unit = without_units and not without_units[0].free_symbols and _UNITS_AS_WORDS.search(answer)
    return tuple(without_units if is_number_with_unit or not as_is else as_is)


def _parse_answer(answer: str, units: bool) -> list[Any]:
    """The answer as mathematics, at most one object; empty when it does not parse or has no finite value."""
    if len(answer) > MAX_ANSWER or _depth(answer) > MAX_DEPTH:
        return []
    parsed = _parse(rf"\boxed{{{answer}}}", _BOXED[units], fallback_mode="no_fallback")
    if not parsed and _PLUS_MINUS.search(answer):
        parsed = _parse(rf"\boxed{{{_both_signs(answer)}}}", _BOXED[units], fallback_mode="no_fallback")
    return parsed


def _both_signs(answer: str) -> str:
    r"""``\frac{1 \pm \sqrt{5}}{2}`` as the list of its two values: math-verify reads no ``\pm`` within a fraction."""
    parts = []
    depth = start = 0
    for position, character in enumerate(answer + ","):
        depth += BRACKETS.get(character, 0)
        if character == "," and depth == 0:
            part, start = answer[start:position], position + 1
            both = len(_PLUS_MINUS.findall(part)) == 1  # with several, it is not clear which signs belong together
            parts += [_PLUS_MINUS.sub(sign, part) for sign in "+-"] if both else [part]
    return ",".join(parts)


def _parse(text: str, configs: tuple[Any, ...], **kwargs: Any) -> list[Any]:
    parsed = parse(text, configs, extraction_mode="first_match", parsing_timeout=None, **kwargs)
    return [item for item in parsed if isinstance(item, str) or not item.has(sympy.nan, sympy.zoo)]


def _depth(answer: str) -> int:
    """How deep brackets of any kind are nested."""
    depth = deepest = 0
    for character in answer:
        depth += BRACKETS.get(character, 0)
        deepest = max(deepest, depth)
    return deepest


def _compare(parsed_ground_truth: Sequence[Any], parsed: Sequence[Any], extraction: str) -> bool:
    if not parsed_ground_truth or not parsed or isinstance(parsed[0], str):  # a string could not be parsed
        return False
    gold, answer = _alike(parsed_ground_truth[0], parsed[0])
    equal = verify(gold, answer, float_rounding=_FLOAT_ROUNDING[extraction], timeout_seconds=None)
    if not equal and not _rounds_to(gold, answer, _FLOAT_ROUNDING[extraction]):
        return False
    return _close(gold, answer) and not _other_equation(gold, answer)


def _alike(gold: Any, answer: Any) -> tuple[Any, Any]:
    """Both in the same form; math-verify compares some pairs of different forms wrongly or not at all."""
    gold, answer = _assignments(gold), _assignments(answer)
    values = _values_in_order(gold)
    if values is not None and not answer.has(sympy.Eq):
        return values, sympy.Tuple(*answer._unsorted_args) if isinstance(answer, FiniteSet) else answer
    expected = _solution_set(gold)
    given = None if expected is None else _solution_set(answer)
    if given is not None and len(gold.free_symbols | answer.free_symbols) == 1:
        return expected, given
    return gold, answer


def _assignments(parsed: Any) -> Any:
    """``(k, n) = (45, 2)`` as ``k = 45, n = 2``; anything else as it is."""
    if not isinstance(parsed, sympy.Eq) or not isinstance(parsed.lhs, sympy.Tuple):
        return parsed
    values = parsed.rhs
    if isinstance(values, sympy.Interval) and values.is_open:  # how math-verify reads a pair
        values = values.args[:2]
    pairs = list(zip(parsed.lhs, values, strict=False)) if isinstance(values, (tuple, sympy.Tuple)) else []
    return FiniteSet(*(sympy.Eq(*pair, evaluate=False) for pair in pairs)) if len(pairs) == len(parsed.lhs) else parsed


def _values_in_order(parsed: Any) -> sympy.Tuple | None:
    """The values of ``k = 45, n = 2``; None unless these are assignments to different names.

    ``x_1`` and ``x_2`` do not count as different names: they number values without an order.
    """
    if not isinstance(parsed, FiniteSet) or not all(isinstance(part, sympy.Eq) for part in parsed):
        return None
    names = {str(part.lhs).partition("_")[0] for part in parsed}
    return sympy.Tuple(*(part.rhs for part in parsed._unsorted_args)) if len(names) == len(parsed) > 1 else None


def _solution_set(parsed: Any) -> sympy.Set | None:
    """The numbers that an interval or solved inequalities in one variable describe; None for anything else."""
    if isinstance(parsed, sympy.Eq):
        parsed = parsed.rhs if isinstance(parsed.lhs, sympy.Symbol) else None  # x in (1, 2]
    if isinstance(parsed, sympy.Set) and not isinstance(parsed, FiniteSet):
        return parsed
    parts = list(parsed) if isinstance(parsed, FiniteSet) else [parsed]
    if not all(_is_solved(part) for part in parts):
        return None
    sets = [part.as_set() for part in parts]
    common = sympy.Intersection(*sets)
    return sympy.Union(*sets) if common.is_empty else common


def _is_solved(part: Any) -> bool:
    """Whether this is ``x < 3`` or ``1 < x <= 2``: a variable alone between numbers."""
    relations = part.args if isinstance(part, sympy.And) else [part]
    return all(
        isinstance(relation, Relational)
        and not isinstance(relation, sympy.Eq)
        and any(side.is_Symbol for side in relation.args)
        and any(side.is_number for side in relation.args)
        for relation in relations
    )


def _rounds_to(gold: Any, answer: Any, decimals: int) -> bool:
    """Whether a whole number and one with a decimal point agree after rounding.

    math-verify rounds only the latter, and sympy then finds 928.00000 unequal to 928. So 9.28 x 10^2 would be wrong.
    """
    if not (isinstance(gold, sympy.Expr) and isinstance(answer, sympy.Expr) and gold.is_number and answer.is_number):
        return False
    one, other = (answer, gold) if gold.is_Integer else (gold, answer)
    return bool(other.is_Integer and one.has(sympy.Float) and abs((one - other).evalf()) < 0.5 * 10**-decimals)


def _close(gold: Any, answer: Any) -> bool:
    """False for numbers that are equal only because both were rounded to 0, also as members of lists and matrices."""
    if not (isinstance(gold, sympy.Expr) and isinstance(answer, sympy.Expr)):
        pairs = zip(_members(gold), _members(answer), strict=False)
        return all(_close(*pair) for pair in pairs)
    if not (gold.is_number and answer.is_number):
        return True
    if not (gold.is_finite and answer.is_finite):
        return bool(gold == answer)  # an infinity, whose difference from itself is no number
    return bool(abs((gold - answer).evalf()) <= RELATIVE_TOLERANCE * abs(gold.evalf()))


def _members(parsed: Any) -> list[Any]:
    """The members of a list, matrix, interval or assignment, those of a set of numbers by size."""
    if isinstance(parsed, sympy.MatrixBase):
        return list(parsed)
    if isinstance(parsed, FiniteSet):
        members = list(parsed)
        return (
            sorted(members, key=sympy.re) if all(member.is_real and member.is_number for member in members) else members
        )
    if isinstance(parsed, sympy.Interval):
        return [parsed.start, parsed.end]
    if isinstance(parsed, sympy.Eq):
        return [parsed.rhs] if isinstance(parsed.lhs, sympy.Symbol) else []
    return list(parsed.args) if isinstance(parsed, (sympy.Tuple, sympy.Union)) else []


def _other_equation(gold: Any, answer: Any) -> bool:
    """Whether these are equations between polynomials, and neither is a multiple of the other by a number.

    math-verify solves for one variable, and so finds x^2 y = 0 and x y = 0 equal.
    """
    sides = [getattr(equation, side, None) for equation in (gold, answer) for side in ("lhs", "rhs")]
    if not (
        isinstance(gold, sympy.Eq)
        and isinstance(answer, sympy.Eq)
        and all(isinstance(side, sympy.Expr) for side in sides)
    ):
        return False
    one, other = (sympy.fraction(sympy.together(equation.lhs - equation.rhs))[0] for equation in (gold, answer))
    if not (one.is_polynomial() and other.is_polynomial()) or other == 0:
        return False
    return bool(sympy.cancel(one / other).free_symbols)
