r"""Grading one answer with math-verify, within the limits of :mod:`cw_plugin.lab.rewards.worker`.

Ground truth and answer are rewritten (:mod:`cw_plugin.lab.rewards.rewrites`), and given to math-verify in the same
form, in a box. What stands here refuses what math-verify accepts, and is not the answer. README.md has the decisions.
"""

import functools
import re
from typing import NamedTuple, TypeAlias

import sympy
from latex2sympy2_extended.sets import FiniteSet
from math_verify import parse, verify

from cw_plugin.lab.rewards.boxed import final_boxed
from cw_plugin.lab.rewards.rewrites import GAP, TEXT, rewritten
from cw_plugin.lab.rewards.unboxed import LATEX, found_in

Parsed: TypeAlias = sympy.Basic | sympy.MatrixBase
"""What math-verify reads in an answer."""

MAX_ANSWER = 2_000  # characters; the longest ground truth of the paper's data has about 250
DECIMALS = {"training": 6, "evaluation": 5}
RELATIVE_TOLERANCE = 1e-3

_WORDS = re.compile(
    rf"{GAP}(?<![_^])(?<![_^]\{{)"
    rf"(?:{TEXT}\{{((?:[^{{}}]|\{{[^{{}}]*\}})*\}}(?:\s*\^\s*\{{?\d\}}?)?)|([^\x00-\x7f]+)){GAP}"
)
_OTHER_NUMBER = re.compile(  # words that make another number of the one beside them, or several
    r"(?<!\^)\d|\b(?:squared|cubed|factorial|hal(?:f|ve)|quarter|third|(?:four|fif|six|seven|eigh|nin|ten|hundred"
    r"|thousand)th|dozen|pair|couple|score|gross|twice|double|triple|hundred|thousand|million|base|mod|at|less|more|no"
    r"|not|and|or)s?\b|[\u500d\u534a\u591a\u4f59\u4e0a\u4e0b\u7ea6\u81f3\u6216\u548c\u4e0d]"
)
_LIST = re.compile(r"[,;](?![^(\[{]*[)\]}])")  # where what stands right of the last equals sign is not all
_EQUALS = re.compile(r"(?<![<>!])=(?![^(\[{]*[)\]}])")
_BASE = re.compile(r"\d\s*\)?\s*_")  # math-verify leaves out the base of a number
_LAYOUT = re.compile(r"\\(?:left|right)(?![a-zA-Z])|\\[,;:! ]|(?<!,)\s+")

# A number that is written out: digits, a fraction, or digits times a power of ten.
_POWER_OF_TEN = r"10\s*\^\s*(?:\d|\{\s*[+-]?\d+\s*\})"
_DIGITS = rf"(?:[+-]\s*)?(?:{_POWER_OF_TEN}|(?:\d+\.?\d*|\.\d+)(?:\s*\\(?:times|cdot)\s*{_POWER_OF_TEN})?)"
_FRACTION_PART = rf"\s*(?:\{{\s*{_DIGITS}\s*\}}|\d)"
_NUMBER = re.compile(
    rf"(?:[+-]\s*)?\d*\s*\\[dtc]?frac{_FRACTION_PART}{_FRACTION_PART}|{_DIGITS}(?:\s*/\s*\d+)?|(?:[+-]\s*)?\\infty"
    r"|\\emptyset"
)
_NO_NUMBER = re.compile(  # layout, signs of a percentage or an angle, names, and a number that is only about right
    r"\\(?:left|right)(?![a-zA-Z])|\\[,;:! %]|\^\s*\{?\s*\\circ\s*\}?"
    r"|[a-zA-Z]\w*(?:_\{\w+\})?(?:\(\w\))?\s*(?:=|\\in|\\approx)|\\approx.*"
)
_BEGIN_OR_END = re.compile(r"\\(begin|end)\s*\{\w+\}(?:\{[clr|]+\})?")
_NUMBERS = re.compile(r"(?:[N\s()\[\]{},;&:]|\\[{}\\]|\\cup(?![a-zA-Z]))*")
_OPERATION = re.compile(
    r"(?P<command>\\(?:sum|prod|i*nt|oint|lim|gcd|lcm|det|max|min|lfloor|lceil|d?binom|choose|[bp]?mod|Gamma)"
    r"(?![a-zA-Z])|[vV]matrix|!(?!=))"
    r"|(?P<sum>\+|\\pm(?![a-zA-Z])|(?<=[\w)}])\s*-)"
    r"|(?P<product>\d\s*(?:\*|\\cdot|\\times|\\div)\s*\d)"
    r"|(?P<power>\d\s*\^\s*(?:\d|\{\d+\}))"
)


class _Answer(NamedTuple):
    """A ground truth or an answer, rewritten."""

    text: str  # what math-verify is given, "" for words alone
    words: str  # what it would leave out
    said: str  # all of it, to compare words with


def grade(ground_truth: str, text: str, extraction: str) -> tuple[float, str]:
    """1.0 or 0.0, and the answer as it stands in the text ("" when there is none)."""
    boxed = final_boxed(text)
    answer = found_in(text, extraction) if boxed is None else boxed
    if not answer or len(answer) > MAX_ANSWER:
        return 0.0, answer
    is_sentence = boxed is None and extraction == "evaluation"
    return float(_is_right(ground_truth, answer, DECIMALS[extraction], is_sentence)), answer


@functools.lru_cache(maxsize=4096)  # responses to one prompt often repeat an answer
def _is_right(ground_truth: str, answer: str, decimals: int, is_sentence: bool) -> bool:
    """Whether the answer equals the ground truth, names no other unit, and leaves no more to be worked out than it."""
    expected, given = read(final_boxed(ground_truth) or ground_truth), read(answer)
    if not expected.text or not given.text:
        return "" != expected.said == given.said
    if not _words_fit(expected.words, given.words):
        return False
    if _without_layout(expected.text) == _without_layout(given.text):
        return True
    if _BASE.search(expected.text + given.text):
        return False
    gold, value = parsed(_decimal(expected.text, given.text)), parsed(_decimal(given.text, expected.text))
    if gold is None or value is None or _other_order(expected.text, given.text, gold, value):
        return False
    result = given.text if _LIST.search(given.text) else _EQUALS.split(given.text)[-1]
    if is_sentence:  # of it, lighteval's extraction takes a sum as well, as in "the answer is $9+1$"
        result = re.sub(r"\+|(?<=\})\s*(?=\\begin)", ",", result)
    if not _is_worked_out(result, expected.text, gold, value):
        return False
    gold, value = _alike(gold, value)
    equal = verify(gold, value, float_rounding=decimals, timeout_seconds=None)
    return equal and _close(gold, value) and not _other_equation(gold, value)


@functools.lru_cache(maxsize=4096)
def read(answer: str) -> _Answer:
    """A ground truth or an answer, rewritten and taken apart; words alone, also between numbers, are no text."""
    answer = rewritten(answer)
    said = re.sub(r"\\[a-zA-Z]*|[\s,;:(){}\[\]]", "", answer).rstrip(".").casefold()
    found = ["".join(match) for match in _WORDS.findall(answer)]
    text = _WORDS.sub("\0", answer)
    if re.search(r"[\w}]\0[\w\\]", text) or re.fullmatch(r"[a-zA-Z]{3,}(?:\s+[a-zA-Z]+)*|[\s(){}\[\].,;:\0]*", text):
        return _Answer("", answer, said)
    words = re.sub(r"(?<=[a-z]{3})s\b|[{}.~]|\\[,;:! ]", "", " ".join(found))
    return _Answer(text.replace("\0", " ").strip(), " ".join(words.split()), said)


@functools.lru_cache(maxsize=4096)
def parsed(answer: str) -> Parsed | None:
    """The answer as math-verify reads it in a box; None when it does not, or when that has no finite value."""
    number = answer.replace(r"\%", "")
    in_form = rf"$\boxed{{{number}}}$\%" if number != answer else rf"\boxed{{{answer}}}"
    found = parse(in_form, [LATEX], "no_fallback", extraction_mode="first_match", parsing_timeout=None)
    return found[0] if found and not found[0].has(sympy.nan, sympy.zoo) else None


def _words_fit(expected: str, given: str) -> bool:
    """Whether words, which math-verify leaves out, are the same, or only on one side and a mere unit."""
    if expected == given:
        return True
    return not (expected and given) and not _OTHER_NUMBER.search(expected or given)


def _without_layout(text: str) -> str:
    return re.sub(r"\{(\w)\}", r"\1", _LAYOUT.sub("", text)).replace(r"\dfrac", r"\frac")


def _decimal(text: str, other: str) -> str:
    """``1,22`` as ``1.22`` beside a number with a decimal point; alone, it is a list."""
    has_comma = re.fullmatch(r"-?(?![1-9]\d{0,2},\d{3}$)\d+,\d+", text)
    return text.replace(",", ".") if has_comma and re.fullmatch(r"-?\d+\.\d+", other) else text


def _other_order(ground_truth: str, answer: str, gold: Parsed, value: Parsed) -> bool:
    """Whether one is a tuple, whose order counts, and the other is a list or a set."""
    is_tuple = isinstance(value, sympy.Tuple) or (isinstance(value, sympy.Interval) and value.is_open)
    return (is_tuple and isinstance(gold, FiniteSet)) or (answer.startswith(r"\{") and ground_truth.startswith("("))


def _alike(gold: Parsed, value: Parsed) -> tuple[Parsed, Parsed]:
    """Both as decimals if one is; and k = 1, n = 2 as a tuple, beside values without names."""
    if _is_number(gold) and _is_number(value):
        # Of 928 and 9.28 x 10^2, math-verify would round only one.
        rounds = (gold.is_Integer or value.is_Integer) and (gold.has(sympy.Float) or value.has(sympy.Float))
        return (gold.evalf(30), value.evalf(30)) if rounds else (gold, value)
    if isinstance(gold, FiniteSet) and isinstance(value, FiniteSet) and not value.has(sympy.Eq):
        parts = gold._unsorted_args
        names = {str(part.lhs).partition("_")[0] for part in parts if isinstance(part, sympy.Eq)}
        if len(names) == len(parts) > 1:  # x_1 = 1, x_2 = 2 are a list
            return sympy.Tuple(*(part.rhs for part in parts)), sympy.Tuple(*value._unsorted_args)
    return gold, value


def _is_worked_out(answer: str, ground_truth: str, gold: Parsed, value: Parsed) -> bool:
    r"""Whether the answer leaves no operation to be carried out that the ground truth does not leave.

    math-verify compares values, so 37 \cdot 43 equals 1591.
    """
    if _is_written_out(ground_truth):
        return _is_written_out(answer) or (_is_number(value) and value.doit().is_rational is False)
    return _operations(answer, gold) <= _operations(ground_truth, gold)


def _is_written_out(text: str) -> bool:
    """Whether there are only numbers in digits, in lists, intervals or matrices, perhaps with names."""
    bracketed = _BEGIN_OR_END.sub(lambda match: "(" if match[1] == "begin" else ")", _NO_NUMBER.sub(" ", text))
    shape = _NUMBER.sub("N", bracketed)
    has_product = re.search(r"[N)}]\s*[N({]", shape)
    return bool(_NUMBERS.fullmatch(shape)) and not has_product


def _operations(text: str, gold: Parsed) -> set[str]:
    """The operations that a text leaves to be carried out; sums, products and powers are none among letters."""
    found = list(_OPERATION.finditer(text))
    named = {match[0] for match in found if match["command"]}
    return named if gold.free_symbols else named | {match.lastgroup or "" for match in found}


def _is_number(value: Parsed) -> bool:
    return isinstance(value, sympy.Expr) and bool(value.is_number)


def _close(gold: Parsed, value: Parsed) -> bool:
    """False for numbers, also in lists, that are equal only because both were rounded to 0, and for 1 beside 1%."""
    if isinstance(value, (FiniteSet, sympy.Tuple, sympy.Interval, sympy.MatrixBase)):
        return all(any(_close(one, other) for one in _parts(gold)) for other in _parts(value))
    if not (_is_number(gold) and _is_number(value)) or gold == value:
        return True
    if gold.has(sympy.UnevaluatedExpr) != value.has(sympy.UnevaluatedExpr):  # a percent sign
        return bool(gold != 1)
    return bool(abs((gold - value).doit().evalf()) <= RELATIVE_TOLERANCE * abs(gold.doit().evalf()))


def _parts(parsed: Parsed) -> list[Parsed]:
    if isinstance(parsed, sympy.Interval):
        return [parsed.start, parsed.end]
    is_list = isinstance(parsed, (FiniteSet, sympy.Tuple))
    return list(parsed) if is_list or isinstance(parsed, sympy.MatrixBase) else [parsed]


def _other_equation(gold: Parsed, value: Parsed) -> bool:
    """Whether both are equations, and none is a multiple of the other by a number, as x^2 y = 0 of x y = 0."""
    if not (isinstance(gold, sympy.Eq) and isinstance(value, sympy.Eq)):
        return False
    ratio = sympy.cancel((gold.lhs - gold.rhs) / (value.lhs - value.rhs))
    return bool(ratio.free_symbols)
