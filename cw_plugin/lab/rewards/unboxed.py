"""The answer of a text that has no box."""

import re
from dataclasses import replace

import sympy
from math_verify import ExprExtractionConfig, parse

from cw_plugin.lab.rewards.reading import LATEX
from cw_plugin.lab.rewards.rewrites import MARKDOWN, POWER_OF_TEN, SIGN_IN_WORDS, UNICODE, rewritten
from cw_plugin.lab.rewards.units import COMPARED_WITH, FUNCTION_OF, SCALES

MAX_TEXT = 4_000  # characters that are searched; math-verify's patterns take more than linear time
MAX_FORMULA = 100  # characters

# open-rs, src/open_r1/rewards.py, accuracy_reward; src/open_r1/evaluate.py, latex_gold_metric and expr_gold_metric.
_SEARCHED_FOR = {
    "training": [replace(LATEX, try_extract_without_anchor=False)],
    "evaluation": [ExprExtractionConfig(), LATEX],
}
_BETWEEN_NUMBERS = re.compile(  # Chinese and Japanese text, and the colon of "Answer:34"
    "[\u3001-\u30ff\u3400-\u9fff\uff01-\uff0f\uff1a-\uff1f]+|(?<=[^\\W\\d_]):(?=\\d)"
)
_NUMBER = r"(?<!\d)\d+(?:[.,]\d+)*"
# No unit, and not the words a and I.
_TERM = rf"[({{]*-?(?:{_NUMBER}[a-fi-kn-rt-z]?|[b-hj-z]|(?-i:i))(?!\w)[)}}]*"
_OPERATOR = r"(?: *(?:[-+*/^]|[<>]=?) *|(?:(?<=[\d)])|(?<=\d[a-z]))(?=\())"  # or none, in 2(x + 1)
_WORDS_BEFORE = rf"\b(?:not|least|most|twice|double|sqrt|log|ln|sin|cos|tan|{COMPARED_WITH})|{FUNCTION_OF}"
_WORDS_AFTER = rf"{SCALES}|pi|choose|mod|modulo|(?:or|and) (?:more|less|fewer|a half)"
_FORMULA = re.compile(
    r"(?i)\d+(?:\s*(?::|\bor\b|\u6216)\s*\d+)+(?:\s*[ap]\.?m\b)?"  # 3:30 PM, 3 or 4
    rf"|(?<![^\s=])(?:{_TERM}|a){_OPERATOR}{_TERM}(?:{_OPERATOR}{_TERM})*"  # 3+5i, x > 5, 2(x + 1)
    rf"|(?<![^\s=]){_NUMBER}[a-fi-kn-rt-z](?!\w)"  # 2x
    r"|[(\[]?(?<![\d.,])-?\d+(?:\.\d+)?(?:, *-?\d+(?:\.\d+)?)+(?:[)\]]|(?=[.\s]*$))"  # (1, 2), and 2, -2 at the end
    rf"|(?:(?<=[ (])[<>]=?|(?<=\bis )- |(?<== )- ) *{_NUMBER}"  # > 5, is - 5, = - 5; no quotation, nor item of a list
    rf"|(?:{_WORDS_BEFORE})\W+{_NUMBER}"  # less than 5
    rf"|{_NUMBER}\s+(?:{_WORDS_AFTER})s?\b(?:\s+\d+)?"  # 5 dozen, 5 choose 2
)


def found_in(text: str, extraction: str) -> str:
    """The last answer that math-verify finds in a text without a box; "" if it finds none."""
    text = _BETWEEN_NUMBERS.sub(r" \g<0> ", rewritten(text[-MAX_TEXT:], [MARKDOWN, POWER_OF_TEN, SIGN_IN_WORDS]))
    if re.search(r"\$|\\[(\[]", text):
        text = rewritten(text, [UNICODE])
    else:  # of a formula without marks, math-verify would find only the first number
        text = _FORMULA.sub(_marked, text)
        text = re.sub(r"\S*[^\x00-\x7f\s]\S*", _marked_if_formula, text)
    found = parse(text, _SEARCHED_FOR[extraction], extraction_mode="first_match", parsing_timeout=None)
    answer = next((item for item in found if isinstance(item, str)), "")
    # math-verify leaves a percent sign out of the text, and keeps the hundredth in the value.
    has_percent_sign = any(isinstance(item, sympy.Basic) and item.has(sympy.UnevaluatedExpr) for item in found)
    return answer + r"\%" if answer and has_percent_sign else answer


def _marked(formula: re.Match[str]) -> str:
    """A formula as LaTeX; as it is, if the answer stands before it, as in "the answer is 5, more than 4".

    A long one stays as it is, too: math-verify would take seconds for hundreds of brackets.
    """
    if len(formula[0]) > MAX_FORMULA:
        return formula[0]
    _, answer, since_then = formula.string[: formula.start()].lower().rpartition("answer")
    is_later = answer and re.search(r"\d", since_then)
    return formula[0] if is_later else f"${rewritten(formula[0])}$"


def _marked_if_formula(word: re.Match[str]) -> str:
    """A word with characters beyond ASCII, as LaTeX, between dollar signs if it has a command."""
    latex = rewritten(word[0])
    return f"${latex}$" if "\\" in latex else latex
