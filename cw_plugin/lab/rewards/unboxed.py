"""The answer of a response without a box: the last one that math-verify finds."""

import re
from dataclasses import replace

import sympy
from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse

from cw_plugin.lab.rewards.rewrites import REWRITES, characters, rewritten

MAX_TEXT = 4_000  # characters that are searched; math-verify's patterns take more than linear time

# Units are left in the text: words.py compares them.
_DEFAULT = LatexExtractionConfig(boxed_match_priority=0)
LATEX = replace(_DEFAULT, normalization_config=replace(_DEFAULT.normalization_config, units=False))
# open-rs, src/open_r1/rewards.py, accuracy_reward; src/open_r1/evaluate.py, latex_gold_metric and expr_gold_metric.
_UNBOXED = {
    "training": [replace(LATEX, try_extract_without_anchor=False)],
    "evaluation": [ExprExtractionConfig(), LATEX],
}
# Markdown's marks around an answer, such as **7**, *7*, __7__ and `7`. Products and powers, such as a * b and 2**3,
# have none; and what is in a formula is none. A digit after a dollar says that it is a sum of money, and no formula.
_MARKDOWN = re.compile(
    r"\$(?=\S)[^$\n]*?(?<=[^\s*`])\$(?!\d)|\\\(.*?\\\)|\\\[.*?\\\]"
    r"|(?<![\w*)}\]^])(?P<mark>\*{1,3}|__|`)(?=\S)(?P<text>[^*`\n]+?)(?<=\S)(?P=mark)(?![*({\\])",
    re.ASCII | re.DOTALL,
)
_POWERS = next(rewrite for rewrite in REWRITES if rewrite.name == "power of ten in words")
_CHINESE = re.compile("[\u3001-\u30ff\u3400-\u9fff\uff01-\uff0f\uff1a-\uff1f]+")
_HUNDREDTH = sympy.UnevaluatedExpr(sympy.Rational(1, 100))  # how math-verify reads a percent sign


def found_in(text: str, extraction: str) -> str:
    """The last answer that math-verify finds in a text without a box; "" if it finds none."""
    text = re.sub(_POWERS.pattern, _POWERS.replacement, _MARKDOWN.sub(_without_marks, text[-MAX_TEXT:]))
    has_formulas = re.search(r"\$|\\[(\[]", text)
    text = re.sub(r"\S*[^\x00-\x7f\s]\S*", _plain if has_formulas else _formula, _CHINESE.sub(r" \g<0> ", text))
    parsed = parse(text, _UNBOXED[extraction], extraction_mode="first_match", parsing_timeout=None)
    answer = next((item for item in parsed if isinstance(item, str)), "")
    is_percentage = any(isinstance(item, sympy.Basic) and item.has(_HUNDREDTH) for item in parsed)
    return answer + r"\%" if answer and is_percentage else answer  # it has read the sign, and left it out of the text


def _without_marks(match: re.Match[str]) -> str:
    return f" {match['text']} " if match["mark"] else match[0]


def _plain(match: re.Match[str]) -> str:
    return re.sub(r"[^\x00-\x7f]+", characters, re.sub(r"(?<=\w)[\u2010-\u2015](?=\w)", " ", match[0]))  # no minus


def _formula(match: re.Match[str]) -> str:
    """Mathematics without marks, of which math-verify would find only the first number."""
    latex = rewritten(match[0])
    return f"${latex}$" if "\\" in latex else _plain(match)
