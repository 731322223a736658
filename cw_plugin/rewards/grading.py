r"""Grading one answer with math-verify: the code that runs in the worker processes.

Extraction follows open-rs: the boxed answer first; where nothing is boxed, what open-rs lets math-verify look for, in
training only LaTeX after words like "the final answer is", in evaluation any LaTeX or number. What differs from
open-rs, each time because it would take a wrong answer for right or a right one for wrong:

- the gold answer is the first argument of ``verify``, which is not symmetric (open-rs swaps the two);
- an unparsable gold earns nothing (in open-rs: 1.0 for every response);
- boxes that stand in one list are one answer;
- ``\frac43`` and ``\sqrt2`` are read in training as well;
- numbers must also agree to one part in a thousand: rounded to decimals alone, all small numbers are equal;
- a unit is dropped only from a number, as ``t`` and ``m`` are also names of variables;
- an answer that does not parse is not replaced by some other number of the response (lighteval's "any_match").

math-verify bounds its own work with ``signal.alarm``, which needs a main thread and cannot stop a C loop. Here its
timeouts are off, and :mod:`cw_plugin.rewards.worker` limits the process instead.
"""

from __future__ import annotations

import functools
import re
from typing import Any

import sympy
from latex2sympy2_extended import NormalizationConfig
from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

from cw_plugin.rewards.boxed import final_boxed, normalize

MAX_ANSWER = 2_000  # characters; the longest gold answer of the paper's data has about 250
MAX_DEPTH = 24  # brackets within brackets; math-verify's grammar needs seconds for 50
MAX_TEXT = 4_000  # characters searched when nothing is boxed; math-verify's patterns take more than linear time

RELATIVE_TOLERANCE = 1e-3

_BRACKETS = dict.fromkeys("([{", 1) | dict.fromkeys(")]}", -1)
_UNITS_AS_WORDS = re.compile(r"\\text|\\mathrm|\\mbox|(?<![\\a-zA-Z])[a-zA-Z]{2,}")


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


def _parse_answer(answer: str, units: bool) -> list[Any]:
    """The answer as mathematics, at most one object; empty when it does not parse or has no finite value."""
    if len(answer) > MAX_ANSWER or _depth(answer) > MAX_DEPTH:
        return []
    return _parse(rf"\boxed{{{answer}}}", _BOXED[units], fallback_mode="no_fallback")


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


@functools.lru_cache(maxsize=4096)
def parse_gold(ground_truth: str) -> tuple[Any, ...]:
    """The gold answer as mathematics, at most one object; empty when it does not parse."""
    answer = normalize(ground_truth)
    as_is, without_units = _parse_answer(answer, units=False), _parse_answer(answer, units=True)
    is_number_with_unit = without_units and not without_units[0].free_symbols and _UNITS_AS_WORDS.search(answer)
    return tuple(without_units if is_number_with_unit or not as_is else as_is)


def grade(ground_truth: str, text: str, extraction: str) -> tuple[float, str]:
    """Extract the answer of ``text`` and compare it with the gold answer.

    Returns:
        1.0 or 0.0, and the answer as it stands in the text ("" when there is none).
    """
    answer = final_boxed(text)
    if answer is not None:
        return _grade_boxed(ground_truth, normalize(answer), extraction), answer
    tail = text[-MAX_TEXT:]
    parsed = _parse(tail, _UNBOXED[extraction]) if _depth(tail) <= MAX_DEPTH else []
    prediction = next((item for item in parsed if isinstance(item, str)), "")
    return _compare(parse_gold(ground_truth), parsed, extraction), prediction


@functools.lru_cache(maxsize=4096)  # the responses to one prompt repeat each other
def _grade_boxed(ground_truth: str, answer: str, extraction: str) -> float:
    gold = parse_gold(ground_truth)
    if not gold:
        return 0.0
    return _compare(gold, _parse_answer(answer, units=not gold[0].free_symbols), extraction)


def _compare(gold: tuple[Any, ...], parsed: list[Any], extraction: str) -> float:
    if not gold or not parsed:
        return 0.0
    equal = verify(list(gold), parsed, float_rounding=_FLOAT_ROUNDING[extraction], timeout_seconds=None)
    return float(equal and _close(gold[0], parsed[0]))


def _close(gold: Any, answer: Any) -> bool:
    """False for two numbers that are equal only because rounding left nothing of them."""
    if not (isinstance(gold, sympy.Expr) and isinstance(answer, sympy.Expr) and gold.is_number and answer.is_number):
        return True
    if not (gold.is_finite and answer.is_finite):
        return bool(gold == answer)  # an infinity, whose difference from itself is no number
    return bool(abs((gold - answer).evalf()) <= RELATIVE_TOLERANCE * abs(gold.evalf()))
