r"""What stands in a ground truth or an answer, as math-verify reads it."""

import functools
import re
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple, TypeAlias

import sympy
from latex2sympy2_extended import convert_to_pct, latex2sympy, normalize_latex
from latex2sympy2_extended.latex2sympy2 import ConversionConfig
from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse
from math_verify.grader import should_treat_as_complex
from math_verify.parser import get_last_eq

from cw_plugin.lab.rewards.rewrites import POWER_OF_TEN, TEXT, UNICODE, rewritten

Parsed: TypeAlias = sympy.Basic | sympy.MatrixBase  # what math-verify reads in an answer

MAX_TEXT = 4_000  # characters that are searched; math-verify's patterns take more than linear time

# Units are left in the text: grading.py compares them.
_DEFAULT = LatexExtractionConfig(boxed_match_priority=0)
_LATEX = replace(_DEFAULT, normalization_config=replace(_DEFAULT.normalization_config, units=False))
# open-rs, src/open_r1/rewards.py, accuracy_reward; src/open_r1/evaluate.py, latex_gold_metric and expr_gold_metric.
_UNBOXED = {
    "training": [replace(_LATEX, try_extract_without_anchor=False)],
    "evaluation": [ExprExtractionConfig(), _LATEX],
}
_CASES = ConversionConfig(lowercase_symbols=False)  # r is another letter than R
_CHINESE = re.compile("[\u3001-\u30ff\u3400-\u9fff\uff01-\uff0f\uff1a-\uff1f]+")
_WORDS = re.compile(  # with an exponent, but not as an index or in one
    rf"\s*(?<![_^])(?<![_^]\{{)"
    rf"(?:{TEXT}\{{((?:[^{{}}]|\{{[^{{}}]*\}})*\}}(?:\s*\^\s*\{{?\d\}}?)?)|([^\x00-\x7f]+))\s*"
)


class Answer(NamedTuple):
    """A ground truth or an answer, rewritten."""

    text: str  # what math-verify is given, "" for words alone
    words: str  # what it would leave out
    said: str  # all of it, to compare words with


@functools.lru_cache(maxsize=4096)
def read(answer: str) -> Answer:
    """A ground truth or an answer, rewritten and taken apart; words alone, also between numbers, are no text."""
    answer = rewritten(answer)
    said = re.sub(rf"{TEXT}(?=\{{)|\\cdot|[\s,;:(){{}}\[\]]", "", answer).rstrip(".").casefold()
    text = _WORDS.sub("\0", answer)
    is_between_numbers = re.search(r"[\w}]\0[\w\\{]", text)
    if is_between_numbers or re.fullmatch(r"(?:[a-zA-Z]{3,}|[nN]o)(?:\s+[a-zA-Z]+)*|[\s(){}\[\].,;:\0]*", text):
        return Answer("", answer, said)
    words = re.sub(r"(?<=[a-z]{3})s\b|[{}.]", "", " ".join("".join(match) for match in _WORDS.findall(answer)))
    return Answer(text.replace("\0", " ").strip(), " ".join(words.split()), said)


@functools.lru_cache(maxsize=4096)
def parsed(answer: str) -> Parsed | None:
    """The answer as math-verify reads it in a box; None when it does not, or when that has no finite value."""
    text = normalize_latex(r"\boxed{" + answer.replace(r"\%", "") + "}", _LATEX.normalization_config)
    for part in (text, get_last_eq(text)):
        with suppress(Exception):
            is_real = not should_treat_as_complex(part)
            value = latex2sympy(part, is_real=is_real, normalization_config=None, conversion_config=_CASES)
            value = convert_to_pct(value) if r"\%" in answer else value
            return None if value.has(sympy.nan, sympy.zoo) else value
    return None


def found_in(text: str, extraction: str) -> str:
    """The last answer that math-verify finds in a text without a box; "" if it finds none."""
    text = _CHINESE.sub(r" \g<0> ", re.sub(POWER_OF_TEN.pattern, POWER_OF_TEN.replacement, text[-MAX_TEXT:]))
    if re.search(r"\$|\\[(\[]", text):
        text = re.sub(UNICODE.pattern, UNICODE.replacement, text)
    else:  # of a formula without marks, math-verify would find only the first number
        text = re.sub(r"\S*[^\x00-\x7f\s]\S*", lambda word: re.sub(r".*\\.*", r"$\g<0>$", rewritten(word[0])), text)
    found = parse(text, _UNBOXED[extraction], extraction_mode="first_match", parsing_timeout=None)
    answer = next((item for item in found if isinstance(item, str)), "")
    has_percent_sign = any(isinstance(item, sympy.Basic) and item.has(sympy.UnevaluatedExpr) for item in found)
    return answer + r"\%" if answer and has_percent_sign else answer  # which it has left out of the text
