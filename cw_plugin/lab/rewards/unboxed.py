"""The answer of a text that has no box."""

import re
from dataclasses import replace

import sympy
from math_verify import ExprExtractionConfig, parse

from cw_plugin.lab.rewards.reading import LATEX
from cw_plugin.lab.rewards.rewrites import AND, MARKDOWN, OR, POWER_OF_TEN, SIGN_IN_WORDS, UNICODE, rewritten
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
_RELATION = "(?:[<>]=?|!=|[\u2260\u2264\u2265])"
_OPERATOR = rf"(?: *(?:[-+*/^]|{_RELATION}) *|(?:(?<=[\d)])|(?<=\d[a-z]))(?=\())"  # or none, in 2(x + 1)
_LIST = r"-?\d+(?:\.\d+)?(?:, *-?\d+(?:\.\d+)?)+"
_VALUE = rf"(?:\b[a-z]\s*=\s*)?(?<![\d.,])-?{_NUMBER}"
_PARTS = (  # 3:30 PM, 3 or -3, x = 3 and y = 4, 3\u52304; but not 12 and 3 of them
    rf"{_VALUE}(?:, *{_VALUE}){{0,9}}(?:\s*(?::|[\u5230\u81f3]|(?:,\s*)?(?:{OR}))\s*{_VALUE}"
    rf"|\s*(?:,\s*)?(?:{AND})\s*{_VALUE}(?![\d.,]*\d|\s+[a-z]))+(?:\s*[ap]\.?m\b)?"
)
_OTHER_NUMBER_IN_CHINESE = (  # not, more or less than, at most or least, beyond, root
    r"(?:\u4e0d[\u662f\u4e3a]|[\u5927\u5c0f\u591a\u5c11\u9ad8\u4f4e]\u4e8e|\u81f3[\u591a\u5c11]\u662f?|\u8d85\u8fc7|\u6839\u53f7)"
    rf"\s*{_NUMBER}"
)
_PRODUCT = r"(?<!\S)\d+[a-fi-kn-rt-z](?!\w)"  # 2x
_NEGATIVE = rf"(?:(?<=\bis )|(?<== ))- +{_NUMBER}"  # is - 5, = - 5, and no item of a list
_WORDS_BEFORE = (
    "\\b(?:not|(?:is|was|ca|wo)n't(?: be)?|least|most|twice|double|sqrt|log|ln|sin|cos|tan|except|cannot be|up to"
    rf"|than or equal to|{COMPARED_WITH})|{FUNCTION_OF}"
)
_LARGE_AND_SMALL = (  # 5 hours and 30 minutes
    rf"{_NUMBER}\s+(?:years?|weeks?|days?|hours?|minutes?|degrees?|feet|foot|pounds?|dollars?)"
    rf"(?:\s+(?:and\s+)?{_NUMBER}\s+(?:months?|days?|hours?|minutes?|seconds?|inch(?:es)?|ounces?|cents?)\b)+"
)
_OPERATIONS = "times|plus|minus|to|(?:divided|multiplied) by|percent of"
_PRECISION = r"\b(?!\s*(?:decimal|significant|digits?|places?|d\.?p|s\.?f))"  # 3.14 to 2 decimal places
_WORDS_AFTER = rf"{SCALES}|pi|choose|base|mod|modulo|(?:or|and) (?:more|less|fewer|a half)"
_WITH_WORDS = (
    rf"(?:{_WORDS_BEFORE})\W+{_NUMBER}",  # less than 5
    rf"(?:minus|negative)\s+{_NUMBER}",
    _LARGE_AND_SMALL,
    rf"-?{_NUMBER}(?:\s+(?:{_OPERATIONS})\s+{_NUMBER}{_PRECISION})+",  # 5 times 6
    rf"-?{_NUMBER}\s+(?:{_WORDS_AFTER})s?\b(?:\s+\d+)?",  # 5 dozen, 5 choose 2
    rf"{_NUMBER}(?-i:[MB])(?!\w)",  # millions
)
_FORMULAS = (
    rf"(?<![^\s=])(?<!\d )(?:{_TERM}|a){_OPERATOR}{_TERM}(?:{_OPERATOR}{_TERM})*",  # 3+5i, x > 5, 2(x + 1)
    _PARTS,
    _PRODUCT,
    rf"[(\[{{]{_LIST}[)\]}}]",  # (1, 2)
    rf"(?:{_NUMBER} *\*? *)?sqrt *\(? *\d+ *\)?(?!\w)|{_NUMBER} *\*? *pi(?!\w)",
    rf"(?:(?<=\bis )|(?<=\bare )|(?<=[:=] )|(?<==)){_LIST}(?=[.\s]*$)",  # are 2, -2
    rf"-?{_NUMBER}(?:(?:,?\s+(?:and|or)\b|,)\s*[a-z]\s*=\s*-?{_NUMBER})+",  # of x = 3, y = 7
    rf"{_NUMBER}_\{{?\d+\}}?",  # a base
    rf"-?{_NUMBER}(?:,? and -?{_NUMBER})+(?=[.\s]*$)",
    _NEGATIVE,
    rf"(?<=[ (]){_RELATION} *{_NUMBER}",  # > 5, and no quotation
    *_WITH_WORDS,
)
_SIMPLE_FORMULA = re.compile(rf"(?i){_PARTS}|{_PRODUCT}|{_NEGATIVE}|{_OTHER_NUMBER_IN_CHINESE}")
_ANSWER = r"(?is)\banswers?\b(?!.*\banswer)"  # the last one
_LETTER = r"(?:\b[a-z]\s*=\s*)?"  # for which a formula stands
_FORMULA_OF_ANSWER = re.compile(rf"{_ANSWER}\D*?(?P<formula>{_LETTER}(?:{'|'.join(_FORMULAS)}))")
_WORDS_OF_ANSWER = re.compile(rf"{_ANSWER}[^\d$\\]*?(?P<formula>{_LETTER}(?:{'|'.join(_WITH_WORDS)}))")
_PART_OF_FORMULA = r"(?:[(+*/^=<>-]|-?\d[\d.,]*(?:\^\{?-?\d+\}?)?|[a-z]\s*=)[.,]?"
_BEYOND_ASCII = r"\S*[^\x00-\x7f\s\u3000-\u9fff\uff00-\uffef]\S*"  # and no Chinese or Japanese
_MARKED_OR_BEYOND_ASCII = re.compile(  # 12 cm\u00b2, 5 \u00d7 3, 3 \u20ac
    rf"\$[^$]*\$|(?:(?<!\S){_PART_OF_FORMULA} ){{0,9}}{_BEYOND_ASCII}"
    rf"(?: (?:{_PART_OF_FORMULA}(?!\S)|{_BEYOND_ASCII})){{0,9}}"
)
_MARKED_NUMBER = re.compile(  # inline in one line, as math-verify reads it
    rf"(?:\$\$\s*|\\\[\s*|\$ *|\\\( *)(?P<number>(?:[a-zA-Z]\s*=\s*)?-?{_NUMBER})(?:\s*\$\$|\s*\\\]| *\$| *\\\))"
)


def found_in(text: str, extraction: str) -> str:
    """The last answer that math-verify finds in a text without a box; "" if it finds none."""
    text = text[-MAX_TEXT:].replace("\u2019", "'").replace(r"\$", "")  # isn't, and \$5
    text = rewritten(text, [MARKDOWN, POWER_OF_TEN, SIGN_IN_WORDS])
    text = re.sub(r"(?<![\w$.])(-?\d+(?:\.\d+)?)\$(?=\\)", r"$\1", text)  # 7$\sqrt2$
    text = re.sub("\\$ ?[\u548c\u4e0e\u53ca\u3001\u6216]\u8005? ?\\$", ", ", text)  # "and" and "or" in Chinese
    text = _BETWEEN_NUMBERS.sub(r" \g<0> ", text)
    if re.search(r"\$|\\[(\[]", text):
        text = rewritten(_with_words_in_marks(text), [UNICODE])
    else:  # of a formula without marks, math-verify would find only the first number
        text = _with_marked_formulas(text)
        text = _MARKED_OR_BEYOND_ASCII.sub(_marked_if_formula, text)
    found = parse(text, _SEARCHED_FOR[extraction], extraction_mode="first_match", parsing_timeout=None)
    answer = next((item for item in found if isinstance(item, str)), "")
    # math-verify leaves a percent sign out of the text, and keeps the hundredth in the value.
    has_percent_sign = any(isinstance(item, sympy.Basic) and item.has(sympy.UnevaluatedExpr) for item in found)
    return answer + r"\%" if has_percent_sign else answer


def _with_marked_formulas(text: str) -> str:
    """Dollar signs around the formula after the word "answer"; if nothing stands after it, around simple formulas.

    A long one stays as it is: math-verify would take seconds for hundreds of brackets.
    """
    found = _FORMULA_OF_ANSWER.search(text)
    if found is not None and len(found["formula"]) <= MAX_FORMULA:
        return _marked(found)
    if re.search(r"(?is)\banswer(?!.*\banswer).*\d", text):
        return text
    return _SIMPLE_FORMULA.sub(lambda formula: f"${rewritten(formula[0])}$", text)


def _with_words_in_marks(text: str) -> str:
    """Dollar signs around a number after the word "answer" and the words that belong to it, as in $5$ dozen.

    Without such words, math-verify reads the text rightly.
    """
    last = max((word.start() for word in re.finditer(r"(?i)\banswer", text)), default=len(text))
    found = _WORDS_OF_ANSWER.search(text[:last] + _MARKED_NUMBER.sub(r"\g<number>", text[last:]))
    return text if found is None else _marked(found)


def _marked(found: re.Match[str]) -> str:
    """The text with dollar signs around the formula that is found in it."""
    start, end = found.span("formula")
    return f"{found.string[:start]}${rewritten(found['formula'])}${found.string[end:]}"


def _marked_if_formula(found: re.Match[str]) -> str:
    """What has characters beyond ASCII, as LaTeX, between dollar signs if it has a command, a power or an index."""
    if found[0].startswith("$"):
        return found[0]
    latex = rewritten(re.sub(r"(?<=\d )(?:[cdkm]?m|ft|in|yd|s)[\u00b2\u00b3]", r"\\text{\g<0>}", found[0]))
    return f"${latex}$" if re.search(r"[\\^_]", latex) else latex
