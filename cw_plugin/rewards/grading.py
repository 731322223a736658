r"""Grading one answer with math-verify: the code that runs in the worker processes.

**Where the answer is.** As in open-rs: in the last box. If nothing is boxed, math-verify searches the text: in training
only LaTeX after words like "the final answer is", in evaluation any LaTeX or number. Boxes in one list are one answer:
``\boxed{2}`` and ``\boxed{6}`` are right for ``2,6`` and wrong for ``6``. Between them may stand a separator, "and",
"or", layout, a name with ``=``, or words like "for part (a) and".

**What is equal:** whatever math-verify finds equal, and

- ``k = 45, n = 2`` and ``45, 2``: assignments and their values. The order of the values matters for different names,
  but not for ``x_1, x_2`` or one repeated name. Two lists of assignments must have the same names.
- ``\frac{1 \pm \sqrt{5}}{2}`` and the list of both values.
- ``9.28 \times 10^2``, ``927.9999999`` and ``928``, after rounding to the decimals below.
- ``28\%``, ``28 percent``, ``28 pct`` and ``28``; a number with a unit and without.
- ``31,250``, ``31{,}250``, ``31\,250``, ``31 250`` and ``31250``.
- ``1.22``, ``1{,}22`` and ``1,22``. If the other side has no decimal point, ``1,22`` is the list of 1 and 22.
  ``1, 22``, ``(1,22)`` and ``\{1,22\}`` are always lists, and ``1,222`` is 1222.
- ``(1, 2]``, ``x \in (1, 2]``, ``1 < x \le 2`` and ``x > 1, x \le 2``: an interval and solved inequalities. Several
  inequalities mean their union if they exclude each other, else their intersection.

**What is not equal,** on purpose:

- ``0.33`` and ``\frac{1}{3}``. Numbers must agree to 6 decimals in training and 5 in evaluation, as in open-rs, and to
  one part in a thousand; after rounding to decimals alone, all small numbers would be equal.
- ``28\%`` and ``0.28``.
- ``x^2 < 4`` and ``(-2, 2)``: an inequality that is still to be solved, and its solution.
- ``x = 4`` and ``y = 4``; ``x > 3`` and ``y > 3``.
- ``2 t`` and ``2``. A unit is dropped only from a number, as ``t`` and ``m`` are also names of variables.
- Any answer and a ground truth that math-verify cannot read; texts are not compared. (In open-rs every response to such
  a problem is right.)

**What else differs from open-rs,** because open-rs would grade wrongly: the ground truth is the first argument of
``verify``, which is not symmetric (open-rs swaps the two). ``\frac43`` and ``\sqrt2``
are read in training as well. An answer that does not parse is not replaced by some other number of the response
(lighteval's "any_match").

math-verify limits its own time with ``signal.alarm``, which needs the main thread and cannot stop a loop in C. Here its
timeouts are off, and :mod:`cw_plugin.rewards.worker` limits the process.
"""

from __future__ import annotations

import functools
import re
from typing import Any

import sympy
from latex2sympy2_extended import NormalizationConfig
from latex2sympy2_extended.sets import FiniteSet
from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify
from sympy.core.relational import Relational

from cw_plugin.rewards.boxed import final_boxed, normalize, point_for_comma

MAX_ANSWER = 2_000  # characters; the longest ground truth of the paper's data has about 250
MAX_DEPTH = 24  # brackets within brackets; math-verify's grammar needs seconds for 50
MAX_TEXT = 4_000  # characters searched when nothing is boxed; math-verify's patterns take more than linear time

RELATIVE_TOLERANCE = 1e-3

_BRACKETS = dict.fromkeys("([{", 1) | dict.fromkeys(")]}", -1)
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
    return _compare(_parse_ground_truth(_normal_ground_truth(ground_truth)), parsed, extraction), prediction


@functools.lru_cache(maxsize=4096)  # responses to one prompt often repeat an answer
def _grade_boxed(ground_truth: str, answer: str, extraction: str) -> float:
    expected, given = _normal_ground_truth(ground_truth), normalize(answer)
    gold = _parse_ground_truth(point_for_comma(expected, given))
    if not gold:
        return 0.0
    parsed = _parse_answer(point_for_comma(given, expected), units=not gold[0].free_symbols)
    return _compare(gold, parsed, extraction)


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
        depth += _BRACKETS.get(character, 0)
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
        depth += _BRACKETS.get(character, 0)
        deepest = max(deepest, depth)
    return deepest


def _compare(parsed_ground_truth: tuple[Any, ...], parsed: list[Any], extraction: str) -> float:
    if not parsed_ground_truth or not parsed or isinstance(parsed[0], str):  # a string could not be parsed
        return 0.0
    gold, answer = _alike(parsed_ground_truth[0], parsed[0])
    equal = verify(gold, answer, float_rounding=_FLOAT_ROUNDING[extraction], timeout_seconds=None)
    return float((equal or _rounds_to(gold, answer, _FLOAT_ROUNDING[extraction])) and _close(gold, answer))


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
    """False for two numbers that are equal only because both were rounded to 0."""
    if not (isinstance(gold, sympy.Expr) and isinstance(answer, sympy.Expr) and gold.is_number and answer.is_number):
        return True
    if not (gold.is_finite and answer.is_finite):
        return bool(gold == answer)  # an infinity, whose difference from itself is no number
    return bool(abs((gold - answer).evalf()) <= RELATIVE_TOLERANCE * abs(gold.evalf()))
