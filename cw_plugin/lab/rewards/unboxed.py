"""The answer of a response without a box: the last one that math-verify finds."""

import re
from dataclasses import replace

import sympy
from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse

from cw_plugin.lab.rewards.rewrites import POWER_OF_TEN, UNICODE, rewritten

MAX_TEXT = 4_000  # characters that are searched; math-verify's patterns take more than linear time

# Units are left in the text: grading.py compares them.
_DEFAULT = LatexExtractionConfig(boxed_match_priority=0)
LATEX = replace(_DEFAULT, normalization_config=replace(_DEFAULT.normalization_config, units=False))
# open-rs, src/open_r1/rewards.py, accuracy_reward; src/open_r1/evaluate.py, latex_gold_metric and expr_gold_metric.
_UNBOXED = {
    "training": [replace(LATEX, try_extract_without_anchor=False)],
    "evaluation": [ExprExtractionConfig(), LATEX],
}
_CHINESE = re.compile("[\u3001-\u30ff\u3400-\u9fff\uff01-\uff0f\uff1a-\uff1f]+")
_HUNDREDTH = sympy.UnevaluatedExpr(sympy.Rational(1, 100))  # how math-verify reads a percent sign


def found_in(text: str, extraction: str) -> str:
    """The last answer that math-verify finds in a text without a box; "" if it finds none."""
    text = re.sub(POWER_OF_TEN.pattern, POWER_OF_TEN.replacement, text[-MAX_TEXT:])
    text = _CHINESE.sub(r" \g<0> ", text)
    if re.search(r"\$|\\[(\[]", text):
        text = re.sub(UNICODE.pattern, UNICODE.replacement, text)
    else:  # in mathematics without marks, math-verify would find only the first number
        text = re.sub(r"\S*[^\x00-\x7f\s]\S*", _marked, text)
    parsed = parse(text, _UNBOXED[extraction], extraction_mode="first_match", parsing_timeout=None)
    answer = next((item for item in parsed if isinstance(item, str)), "")
    is_percentage = any(isinstance(item, sympy.Basic) and item.has(_HUNDREDTH) for item in parsed)
    return answer + r"\%" if answer and is_percentage else answer  # it has read the sign, and left it out of the text


def _marked(match: re.Match[str]) -> str:
    """A word, with the marks of a formula if it is one."""
    latex = rewritten(match[0])
    return f"${latex}$" if "\\" in latex else latex
