r"""Grading one answer with math-verify: the code that runs in the worker processes. README.md has the decisions.

math-verify limits its own time with ``signal.alarm``, which needs the main thread and cannot stop a loop in C. Here its
timeouts are off, and :mod:`cw_plugin.lab.rewards.worker` limits the process.
"""

import functools
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import sympy
from latex2sympy2_extended.sets import FiniteSet
from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify
from sympy.core.relational import Relational

from cw_plugin.lab.rewards.boxed import PERCENT, final_boxed, normalize, point_for_comma
from cw_plugin.lab.rewards.forms import (
    Parsed,
    depths,
    last_side,
    members,
    operations,
    split_bases,
    units_agree,
    without_units,
)
from cw_plugin.lab.rewards.words import plain_characters, split_conditions

MAX_ANSWER = 2_000  # characters; the longest ground truth of the paper's data has about 250
MAX_DEPTH = 24  # brackets within brackets; math-verify's grammar needs seconds for 50
MAX_TEXT = 4_000  # characters searched when nothing is boxed; math-verify's patterns take more than linear time
DECIMALS = {"training": 6, "evaluation": 5}
RELATIVE_TOLERANCE = 1e-3

_LATEX = LatexExtractionConfig(boxed_match_priority=0)  # leaves units out
_LATEX_WITH_UNITS = replace(_LATEX, normalization_config=replace(_LATEX.normalization_config, units=False))
# open-rs, src/open_r1/rewards.py, accuracy_reward; src/open_r1/evaluate.py, latex_gold_metric and expr_gold_metric.
_UNBOXED = {
    "training": [replace(_LATEX, try_extract_without_anchor=False)],
    "evaluation": [ExprExtractionConfig(), _LATEX],
}
# Markdown's marks around an answer, such as **7**, *7*, __7__ and `7`. Products and powers, such as a * b and 2**3,
# have none; and what is in a formula is none. As in pandoc, no space stands just inside the dollars of a formula, nor a
# digit after them: two sums of money are no formula.
_MARKDOWN = re.compile(
    r"(?P<formula>\$(?=\S)[^$\n]*?(?<=[^\s*`])\$(?!\d)|\\\(.*?\\\)|\\\[.*?\\\])"
    r"|(?<![\w*)}\]^])(?P<strong>\*{2,3}|__)(?=\S)(?P<bold>[^*`\n]+?)(?<=\S)(?P=strong)(?!\*)"
    r"|(?<![\w*)}\]^])(?P<mark>[*`])(?=\S)(?P<text>[^*`\n]+?)(?<=\S)(?P=mark)(?![\w*({\\])",
    re.ASCII | re.DOTALL,
)
_HUNDREDTH = sympy.UnevaluatedExpr(sympy.Rational(1, 100))  # how math-verify reads a percent sign


class _Answer(NamedTuple):
    """An answer in a response.

    Attributes:
        text: as it stands there, "" when there is none.
        is_boxed: whether it is that in a box.
        formulas: several answers in a row, such as "$x = 1$ or $x = 2$", as one set; None for a single one.
    """

    text: str
    is_boxed: bool
    formulas: sympy.FiniteSet | None = None


def grade(ground_truth: str, text: str, extraction: str) -> tuple[float, str]:
    """1.0 or 0.0, and the answer as it stands in the text ("" when there is none)."""
    boxed = final_boxed(text)
    answer = _unboxed_answer(text, extraction) if boxed is None else _Answer(boxed, is_boxed=True)
    if not answer.text or len(answer.text) > MAX_ANSWER:
        return 0.0, answer.text
    return float(_is_right(ground_truth, answer, extraction)), answer.text


def _unboxed_answer(text: str, extraction: str) -> _Answer:
    """The last answer in a text without a box."""
    without_marks = _MARKDOWN.sub(_without_marks, text[-MAX_TEXT:])
    parsed = _parse(plain_characters(without_marks), _UNBOXED[extraction])
    answer = next((item for item in parsed if isinstance(item, str)), "")
    is_percentage = any(isinstance(item, sympy.Basic) and item.has(_HUNDREDTH) for item in parsed)
    if answer and is_percentage:
        answer += r"\%"  # which math-verify has read, and left out of the text
    # math-verify reads several formulas one by one, and joins their texts with "and".
    are_several = " and " in answer and isinstance(parsed[0], sympy.FiniteSet)
    return _Answer(answer, is_boxed=False, formulas=parsed[0] if are_several else None)


def _without_marks(match: re.Match[str]) -> str:
    """A formula as it is; other text without the marks, and with a space where a word stood right beside them."""
    if match["formula"]:
        return match["formula"]
    text, before, after = match["bold"] or match["text"], match.string[: match.start()], match.string[match.end() :]
    space_before = " " if before[-1:].isalnum() else ""
    space_after = " " if after[:1].isalnum() else ""
    return f"{space_before}{text}{space_after}"


@functools.lru_cache(maxsize=4096)  # responses to one prompt often repeat an answer
def _is_right(ground_truth: str, answer: _Answer, extraction: str) -> bool:
    """Whether the answer equals the ground truth, names no other unit, and leaves no more to be worked out than it."""
    expected, base = split_bases(normalize(final_boxed(ground_truth) or ground_truth))
    given, given_base = split_bases(normalize(answer.text))
    expected, condition = split_conditions(expected)
    given, given_condition = split_conditions(given)
    gold = _parse_with_unit(point_for_comma(expected, given))
    if gold is None or (base and given_base != base) or condition != given_condition:
        return False
    value = answer.formulas or _value(point_for_comma(given, expected), gold, answer.is_boxed)
    if value is None:
        return False
    readings = _readings_of_percent(gold, value, _has_percent(ground_truth), _has_percent(answer.text))
    if not any(_equal(expected_value, value_read, DECIMALS[extraction]) for expected_value, value_read in readings):
        return False
    allowed = operations(expected, gold)
    if gold.free_symbols:
        allowed |= {"irrational", "letters"}
    # Of a sentence, lighteval's extraction takes a sum as well, as in "the answer is $9+1$".
    if not answer.is_boxed and extraction == "evaluation":
        allowed |= {"addition", "matrices"}
    text, value = _right_of_equals(given, value, gold)
    return units_agree(expected, text) and operations(text, value) <= allowed


def _value(text: str, gold: Parsed, is_boxed: bool) -> Parsed | None:
    """The answer as mathematics, without its unit if the ground truth is a number; None if it does not parse."""
    return _parse_answer(text, units=not gold.free_symbols) if is_boxed else _parse_with_unit(text)


def _right_of_equals(text: str, value: Parsed, gold: Parsed) -> tuple[str, Parsed]:
    """Text and value of what stands right of the last ``=``, which is the answer unless an equation is asked for."""
    side = last_side(text)
    if side == text or isinstance(gold, sympy.Eq):
        return text, value
    of_side = _parse_answer(side, units=not gold.free_symbols)
    return side, value if of_side is None else of_side


def _has_percent(text: str) -> bool:
    return re.search(PERCENT, text) is not None


def _readings_of_percent(
    gold: Parsed, value: Parsed, gold_has_sign: bool, value_has_sign: bool
) -> list[tuple[Parsed, Parsed]]:
    """Pairs of ground truth and answer of which one must be equal."""
    if gold_has_sign and not value_has_sign and _is_number(gold):  # 50 and 0.5 are both right for 50%
        return [(gold, value), (gold / 100, value)]
    if value_has_sign and not gold_has_sign:
        readings = []
        # The sign means nothing where the ground truth is a percentage without it, so more than 1.
        if not (_is_number(gold) and abs(gold) <= 1):
            readings.append((gold, value))
        if _is_number(value):
            readings.append((gold, value / 100))
        return readings
    return [(gold, value)]


def _is_number(parsed: Parsed) -> bool:
    return isinstance(parsed, sympy.Expr) and bool(parsed.is_number)


@functools.lru_cache(maxsize=4096)
def _parse_with_unit(answer: str) -> Parsed | None:
    as_is, bare = _parse_answer(answer, units=False), _parse_answer(answer, units=True)
    has_words = re.search(r"\\text|\\mathrm|\\mbox|(?<![\\a-zA-Z])[a-zA-Z]{2,}", answer)
    is_number_with_unit = bare is not None and not bare.free_symbols and has_words
    return bare if is_number_with_unit or as_is is None else as_is


def _parse_answer(answer: str, units: bool) -> Parsed | None:
    """The answer as mathematics; None when it does not parse or has no finite value."""
    if units:  # math-verify leaves out those that stand in \text{} alone
        answer = without_units(answer)
    # math-verify reads no plus-minus within a fraction. Several in one answer have the same sign.
    both_signs = ",".join(re.sub(r"\\pm(?![a-zA-Z])", sign, answer) for sign in "+-")
    for text in dict.fromkeys([answer, both_signs if r"\pm" in answer else answer]):
        config = [_LATEX if units else _LATEX_WITH_UNITS]
        if parsed := _parse(rf"\boxed{{{text}}}", config, fallback_mode="no_fallback"):
            return parsed[0]
    return None


def _parse(
    text: str, configs: Sequence[ExprExtractionConfig | LatexExtractionConfig], **kwargs: str
) -> list[Parsed | str]:
    if max(depths(text), default=0) > MAX_DEPTH:
        return []
    parsed = parse(text, configs, extraction_mode="first_match", parsing_timeout=None, **kwargs)
    return [item for item in parsed if isinstance(item, str) or not item.has(sympy.nan, sympy.zoo)]


def _equal(gold: Parsed, answer: Parsed, decimals: int) -> bool:
    gold, answer = _alike(gold, answer)
    if not verify(gold, answer, float_rounding=decimals, timeout_seconds=None) or _other_equation(gold, answer):
        return False
    given = list(members(answer))  # none of a set such as the real numbers
    return not given or all(any(_close(one, other) for other in given) for one in members(gold))


def _alike(gold: Parsed, answer: Parsed) -> tuple[Parsed, Parsed]:
    """Both in the same form; math-verify compares some pairs of different forms wrongly or not at all."""
    if _is_number(gold) and _is_number(answer):
        # Of 928 and 9.28 x 10^2, math-verify would round only one.
        rounds = (gold.is_Integer or answer.is_Integer) and (gold.has(sympy.Float) or answer.has(sympy.Float))
        return (gold.evalf(30), answer.evalf(30)) if rounds else (gold, answer)
    expected, given = _assignments(gold), _assignments(answer)
    names = {str(equation.lhs).partition("_")[0] for equation in expected}  # x_1 and x_2 have no order
    if len(names) == len(expected) > 1 and not answer.has(sympy.Eq):
        values = sympy.Tuple(*(equation.rhs for equation in expected))
        return values, sympy.Tuple(*answer._unsorted_args) if isinstance(answer, FiniteSet) else answer
    if expected and given:
        return FiniteSet(*expected), FiniteSet(*given)
    solutions = _solution_set(gold), _solution_set(answer)
    if None not in solutions and len(gold.free_symbols | answer.free_symbols) == 1:
        return solutions
    return gold, answer


def _assignments(parsed: Parsed) -> list[sympy.Eq]:
    """The equations of ``k = 45, n = 2`` and of ``(k, n) = (45, 2)``; empty for anything else."""
    parts = parsed._unsorted_args if isinstance(parsed, FiniteSet) else []
    if isinstance(parsed, sympy.Eq) and isinstance(parsed.lhs, sympy.Tuple):
        values = parsed.rhs.args[:2] if isinstance(parsed.rhs, sympy.Interval) else parsed.rhs  # a pair, or an interval
        if isinstance(values, (tuple, sympy.Tuple)) and len(values) == len(parsed.lhs):
            parts = [sympy.Eq(*pair, evaluate=False) for pair in zip(parsed.lhs, values, strict=True)]
    return list(parts) if all(isinstance(part, sympy.Eq) for part in parts) else []


def _solution_set(parsed: Parsed) -> sympy.Set | None:
    """The numbers that an interval or solved inequalities in one variable describe; None for anything else."""
    if isinstance(parsed, sympy.Eq) and isinstance(parsed.lhs, sympy.Symbol):
        parsed = parsed.rhs  # x in (1, 2]
    if isinstance(parsed, sympy.Set) and not isinstance(parsed, FiniteSet):
        return parsed
    parts = list(parsed) if isinstance(parsed, FiniteSet) else [parsed]
    if not all(isinstance(part, (Relational, sympy.And)) and _is_solved(part) for part in parts):
        return None
    sets = [part.as_set() for part in parts]
    common = sympy.Intersection(*sets)
    return sympy.Union(*sets) if common.is_empty else common


def _is_solved(part: Relational | sympy.And) -> bool:
    """Whether this is ``x < 3`` or ``1 < x <= 2``: a variable alone between numbers."""
    return not part.has(sympy.Eq) and all(
        any(side.is_Symbol for side in relation.args) and any(side.is_number for side in relation.args)
        for relation in part.atoms(Relational)
    )


def _close(gold: Parsed, answer: Parsed) -> bool:
    """False for numbers that are equal only because both were rounded to 0."""
    if not (_is_number(gold) and _is_number(answer)) or gold == answer:
        return True
    return bool(abs((gold - answer).doit().evalf()) <= RELATIVE_TOLERANCE * abs(gold.doit().evalf()))


def _other_equation(gold: Parsed, answer: Parsed) -> bool:
    """Whether these are equations between polynomials, and neither is a multiple of the other by a number.

    math-verify solves for one variable, and so finds x^2 y = 0 and x y = 0 equal.
    """
    equations = [one for one in (gold, answer) if isinstance(one, sympy.Eq)]
    if len(equations) < 2 or not all(isinstance(side, sympy.Expr) for one in equations for side in one.args):
        return False
    left, right = (sympy.fraction(sympy.together(one.lhs - one.rhs))[0] for one in equations)
    if not (left.is_polynomial() and right.is_polynomial()) or right == 0:
        return False
    return bool(sympy.cancel(left / right).free_symbols)
