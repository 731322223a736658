r"""What stands in a ground truth or an answer, as math-verify reads it."""

import functools
import math
import re
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple, TypeAlias

import sympy
from latex2sympy2_extended import convert_to_pct, latex2sympy, normalize_latex
from latex2sympy2_extended.latex2sympy2 import ConversionConfig
from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse
from math_verify.grader import should_treat_as_complex

from cw_plugin.lab.rewards.rewrites import IN_SENTENCES, TEXT, UNICODE, rewritten

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
_ABSOLUTE = re.compile(r"\||\\sqrt\s*\{?\s*[a-zA-Z]")  # what is another number for a complex one
_CASES = ConversionConfig(lowercase_symbols=False)  # r is another letter than R
_NO_PART = re.compile("[\u3001-\u30ff\u3400-\u9fff\uff01-\uff0f\uff1a-\uff1f]+|(?<=[^\\W\\d_]):(?=\\d)")  # of a number
_FORMULA = re.compile(r"(?i)\d+(?:\s*(?::|\bor\b|\u6216)\s*\d+)+(?:\s*[ap]\.?m\b)?|(?<!\S)\d+[a-fi-kn-rt-z](?!\w)")
_CHOICE = re.compile(  # its letter and its text, without the next choice
    rf"(?:(?i:option|choice)\s+)?(?:{TEXT}\{{)?\s*\(?([A-H])\s*(?:\)[:.]?|[:.](?=[\s\d\\$]))\s*\}}?\s*"
    rf"((?!\}}|[,+/^]|\s*[A-H]\s*\}}?\s*$|(?:{TEXT}\{{)?\s*(?:or|and)\b|.*[A-H]\s*[):.])[\s\S]+)"
)
_WORDS = re.compile(  # with an exponent, but not as an index or in one
    rf"\s*(?<![_^])(?<![_^]\{{)"
    rf"(?:(?!(?<!\d)(?<!\d )\\operatorname\*?\s*\{{\w+\}}\s*[\w\\(])"  # a function
    rf"{TEXT}\{{((?:[^{{}}]|\{{[^{{}}]*\}})*\}}(?:\s*\^\s*\{{?-?\d\}}?)?)|([^\x00-\x7f]+))\s*"
)
_OUTSIDE = r"(?![^(\[{]*[)\]}])"  # of brackets
_COMMA = rf"(?:[,;]|\\\\(?![\s\S]*\\end)){_OUTSIDE}"  # or the end of a line, which no matrix has
_EQUALS = rf"(?<![<>!])(?<!\\not)=(?!=){_OUTSIDE}|\\approx(?![a-zA-Z])"
_NAME = re.compile(rf"(?:(?<=,)|^)((?:(?!{_EQUALS})[^,<>])*{TEXT}\{{[^<>=]*|\s*[a-zA-Z]{{3,}}[\sa-zA-Z]*)(?:{_EQUALS})")
_FOR_ALL = rf"(?:{TEXT}\{{\s*)?\b(?:for (?:all|any|each|every)|where)\b|\\forall"
_AFTER = rf"(?:(?<=[,;(])|(?<=\s\s)|(?:{TEXT}\{{\s*)?\b(?:for|with)\s*\}}?)"
_MEMBERS = rf"{_AFTER}\s*[a-zA-Z](?:\s*,\s*[a-zA-Z])*\s*\\in\s*\\mathbb"
_DOMAIN = re.compile(rf"(?<=[\w)}}\]])[\s,;(\\]*(?:{_FOR_ALL}|{_MEMBERS}).*$")

_CONDITION = re.compile(r"\b(?:odd|even)\b|\\ne|=\s*-?\d+\s*$")
_LINEAR = re.compile(r"\s*(?=.*[-+\d])(?:\d+\s*[-+]|-)?\s*\d*\s*[a-zA-Z]\s*(?:[-+]\s*\d+)?\s*")  # in one unknown


class Answer(NamedTuple):
    """A ground truth or an answer, rewritten and taken apart."""

    text: str  # what math-verify is given, "" for words alone
    words: str  # what it would leave out
    name: str  # the left sides in words
    domain: set[str]  # the sets of numbers for which it is said to hold
    conditions: set[str]  # what else restricts it
    said: list[str]  # all of it, to compare words with
    symbols: list[str]  # the text, to compare what cannot be read


def choices(answer: str) -> tuple[str, ...]:
    """The letter and the text of a choice such as (B) 12; the answer alone if it is none."""
    choice = _CHOICE.fullmatch(answer.strip())
    return choice.groups() if choice else (answer,)


@functools.lru_cache(maxsize=4096)
def read(answer: str) -> Answer:
    """A ground truth or an answer, rewritten and taken apart; words alone, also between numbers, are no text."""
    answer = rewritten(answer)
    plain = re.sub(rf"{TEXT}(?=\{{)|\\cdot", "", answer)
    said = re.findall(r"\\[a-zA-Z]+|[a-zA-Z]+|\d+|[^\s\\,;:.(){}\[\]]", plain)
    said = said if len(said) == 1 and len(said[0]) == 1 else [word.casefold() for word in said]
    holds_for = "".join(_DOMAIN.findall(answer))
    domain, conditions = set(re.findall(r"\\mathbb\s*\{?(\w)", holds_for)), set(_CONDITION.findall(holds_for))
    if not domain & {"Z", "N"}:
        conditions.discard(r"\ne")  # of a function, whose formula says so
    name = " ".join(_NAME.findall(answer))
    answer = _NAME.sub("", _DOMAIN.sub("", answer))
    text = _WORDS.sub("\0", answer)
    is_between_numbers = re.search(r"[\w}]\0[\w\\{]|\d\s*[a-zA-Z][a-zA-Z\s]*\d+(?![\d\s]*\^)", text)  # 3 to 2, 2h30m
    if is_between_numbers or re.fullmatch(r"(?:[a-zA-Z]{3,}|[nN]o)(?:\s+[a-zA-Z]+)*|[\s(){}\[\].,;:\0]*", text):
        return Answer("", answer, name, domain, conditions, said, [])
    words = " ".join(dict.fromkeys("".join(match) for match in _WORDS.findall(answer))).casefold()
    words = re.sub(r"(?<=[a-z]{2}[a-rt-z])s\b|[{}.]|\\cdot|\\times|\s+(?=[\^/])|(?<=[\^/])\s+", "", words)
    text = text.replace("\0", " ").strip()
    return Answer(
        text, " ".join(words.split()), name, domain, conditions, said, re.findall(r"\\[a-zA-Z]+|\d+|\S", text)
    )


def _sides(answer: str) -> list[list[str]]:
    """What stands on each side of the equals signs, for each part of an answer."""
    return [re.split(_EQUALS, part) for part in re.split(_COMMA, answer)]


def leaves_unknown(answer: str) -> bool:
    """Whether an answer such as 2x = 10 or x + 1 = 6 does not say what its unknown is."""
    return any(len(sides) == 2 and _LINEAR.fullmatch(sides[0]) for sides in _sides(answer))


def right_sides(answer: str) -> str:
    """An answer without what stands before an equals sign, such as 1, 2 for x = 1, y = 2."""
    return ", ".join(sides[-1] for sides in _sides(answer))


@functools.lru_cache(maxsize=4096)
def parsed(answer: str) -> Parsed | None:
    """The answer as math-verify reads it in a box; None when it does not, or when that has no finite value."""
    values = right_sides(answer)
    if r"\angle" in values:  # latex2sympy would read a product of letters
        return None
    if several := _side_by_side(values):
        return several
    for part in (answer, values):
        with suppress(Exception):
            text = normalize_latex(r"\boxed{" + part.replace(r"\%", "") + "}", _LATEX.normalization_config)
            is_real = not (_ABSOLUTE.search(text) and should_treat_as_complex(text))
            value = latex2sympy(text, is_real=is_real, normalization_config=None, conversion_config=_CASES)
            if _has_lost_brackets(value, text) or value.has(sympy.nan, sympy.zoo):
                return None
            value = value.as_immutable() if isinstance(value, sympy.MatrixBase) else value
            return convert_to_pct(value) if r"\%" in answer else value
    return None


def _has_lost_brackets(value: Parsed, text: str) -> bool:
    """Whether latex2sympy has made a set of [1,1], a tuple of [2,1], or the empty set of (2,1]."""
    if "[" not in text and "]" not in text:
        return False
    is_interval_no_more = isinstance(value, (sympy.FiniteSet, sympy.Tuple)) and not hasattr(value, "_unsorted_args")
    return is_interval_no_more or value == sympy.S.EmptySet


def _side_by_side(text: str) -> Parsed | None:
    """A ratio, or a time, a date or a score, which equals only itself; latex2sympy would read quotients and sums."""
    plain, parts = text.replace(" ", ""), text.split(":")
    if re.fullmatch(r"\d+(?:[:/-]\d+)+", plain) and not re.fullmatch(r"\d+/\d+", plain):
        first, *others = re.split("[:/-]", plain)
        is_reduced = others[0] >= "1" and math.gcd(*map(int, [first, *others])) == 1
        if len(parts) == 1 or (not is_reduced and {len(part) for part in others} == {2}):
            return sympy.Symbol(plain)
    if len(parts) < 3 or re.search(r"[,;]|\\\{", text):
        return None
    numbers = [value for value in map(parsed, parts) if isinstance(value, sympy.Expr)]
    if len(numbers) < len(parts):
        return None
    return sympy.Function("ratio")(*(number / numbers[0] for number in numbers))


def found_in(text: str, extraction: str) -> str:
    """The last answer that math-verify finds in a text without a box; "" if it finds none."""
    text = _NO_PART.sub(r" \g<0> ", rewritten(text[-MAX_TEXT:], IN_SENTENCES))
    if re.search(r"\$|\\[(\[]", text):
        text = rewritten(text, [UNICODE])
    else:  # of a formula without marks, math-verify would find only the first number
        text = _FORMULA.sub(lambda formula: f"${rewritten(formula[0])}$", text)
        text = re.sub(r"\S*[^\x00-\x7f\s]\S*", lambda word: re.sub(r".*\\.*", r"$\g<0>$", rewritten(word[0])), text)
    found = parse(text, _UNBOXED[extraction], extraction_mode="first_match", parsing_timeout=None)
    answer = next((item for item in found if isinstance(item, str)), "")
    has_percent_sign = any(isinstance(item, sympy.Basic) and item.has(sympy.UnevaluatedExpr) for item in found)
    return answer + r"\%" if answer and has_percent_sign else answer  # which it has left out of the text
