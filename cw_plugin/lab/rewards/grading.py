r"""Grading one answer with math-verify, within the limits of :mod:`cw_plugin.lab.rewards.worker`.

Ground truth and answer are read alike. What stands here refuses what math-verify accepts, and is not the answer.
README.md has the decisions.
"""

import functools
import re

import sympy
from latex2sympy2_extended.sets import FiniteSet
from math_verify import verify

from cw_plugin.lab.rewards.boxed import final_boxed
from cw_plugin.lab.rewards.reading import Parsed, found_in, parsed, read

MAX_ANSWER = 2_000  # characters; the longest ground truth of the paper's data has about 250
DECIMALS = {"training": 6, "evaluation": 5}
RELATIVE_TOLERANCE = 1e-3

_OTHER_NUMBER = re.compile(  # words that make another number of the one beside them, or several
    r"(?<!\^)\d|\b(?:squared|cubed|factorial|hal(?:f|ve)|quarter|third|(?:four|fif|six|seven|eigh|nin|ten|hundred"
    r"|thousand)th|dozen|pair|couple|score|gross|twice|double|triple|hundred|thousand|million|base|mod|at|less|more|no"
    r"|not|and|or)s?\b|[\u500d\u534a\u591a\u4f59\u4e0a\u4e0b\u7ea6\u81f3\u6216\u548c\u4e0d]"
)
_LAYOUT = re.compile(r"\{(\w)\}|(?<!,)\s+|(?<=\\)[dt](?=frac)")  # of no meaning
_LIST = re.compile(r"[,;](?![^(\[{]*[)\]}])")  # where what stands right of the last equals sign is not all
_EQUALS = re.compile(r"(?<![<>!])=(?![^(\[{]*[)\]}])|\\approx(?![a-zA-Z])")

# Numbers that are written out, in lists, intervals and matrices, perhaps with names.
_SIGN = r"(?:[+-]\s*)?"
_DIGITS = r"(?:10\s*\^\s*(?:\d|\{[+-]?\d+\})|\d+(?:\.\d*)?|\.\d+)"
_PART = rf"\s*(?:\{{\s*{_SIGN}{_DIGITS}\s*\}}|\d)"
_NUMBER = rf"{_SIGN}(?:(?:\d+\s*)?\\[dtc]?frac{_PART}{_PART}|{_DIGITS}(?:\}}?\s*/\s*\d+)?|\\infty|\\emptyset)"
_NAME = r"[a-zA-Z]\w*(?:_\{\w+\})?(?:\(\w\))?\s*(?:=|\\in|\\approx)"
_MATRIX = r"(?:[bp]?matrix|array|cases)\}(?:\{[clr|]+\})?"
_OPEN = rf"(?:\s|{_NAME}|\\?[(\[{{]|\\begin\{{{_MATRIX})*"
_CLOSE = rf"(?:\s|\\%|\^\s*\{{?\s*\\circ|\\?[)\]}}]|(?:\\\\\s*)?\\end\{{{_MATRIX})*"
_BETWEEN = r"(?:[,;&:]|\\\\|\\cup(?![a-zA-Z]))"
_WRITTEN_OUT = re.compile(rf"{_OPEN}{_NUMBER}{_CLOSE}(?:{_BETWEEN}{_OPEN}{_NUMBER}{_CLOSE})*")

_COMMAND = (
    r"\\(?:sum|prod|i*nt|oint|lim|gcd|lcm|det|max|min|lfloor|lceil|d?binom|choose|[bp]?mod|Gamma)(?![a-zA-Z])"
    r"|[vV]matrix|!(?!=)"
)
_ARITHMETIC = (
    r"(?P<sum>\+|\\pm(?![a-zA-Z])|(?<=[\w)}])\s*-)|(?P<product>\d\s*(?:\*|\\cdot|\\times|\\div)\s*\d)"
    r"|(?P<power>\d\s*\^\s*(?:\d|\{\d+\}))"
)


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
    words = [expected.words, given.words]  # on one side only, a mere unit is all right
    if words[0] != words[1] and (all(words) or _OTHER_NUMBER.search("".join(words))):
        return False
    if _LAYOUT.sub(r"\1", expected.text) == _LAYOUT.sub(r"\1", given.text):
        return True
    gold, value = parsed(_decimal(expected.text, given.text)), parsed(_decimal(given.text, expected.text))
    if gold is None or value is None or _other_order(expected.text, given.text, gold, value):
        return False
    result = given.text if _LIST.search(given.text) else _EQUALS.split(given.text)[-1]
    if is_sentence:  # of it, lighteval's extraction takes a sum as well, as in "the answer is $9+1$"
        result = re.sub(r"(?<=\S)\s*\+|(?<=\})\s*(?=\\begin)", ",", result)
    if not _is_worked_out(result, expected.text, gold, value):
        return False
    gold, value = _alike(gold, value)
    if not verify(gold, value, float_rounding=decimals, timeout_seconds=None) or not _close(gold, value):
        return False
    are_equations = isinstance(gold, sympy.Eq) and isinstance(value, sympy.Eq)
    # Equal are those whose ratio is a number: not x^2 y = 0 and x y = 0, which have the same solutions.
    return not are_equations or not sympy.cancel((gold.lhs - gold.rhs) / (value.lhs - value.rhs)).free_symbols


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
    kinds = (sympy.Integer, sympy.Float)
    if isinstance(gold, kinds) and isinstance(value, kinds) and gold.is_Float != value.is_Float:
        return gold.evalf(30), value.evalf(30)  # of 3 and 2.9999999, math-verify would round only one
    if isinstance(gold, FiniteSet) and isinstance(value, FiniteSet) and not value.has(sympy.Eq):
        parts = gold._unsorted_args
        names = {str(part.lhs).partition("_")[0] for part in parts if isinstance(part, sympy.Eq)}
        if len(names) == len(parts) > 1:  # x_1 = 1, x_2 = 2 are a list
            return sympy.Tuple(*(part.rhs for part in parts)), sympy.Tuple(*value._unsorted_args)
    return gold, value


def _is_worked_out(answer: str, ground_truth: str, gold: Parsed, value: Parsed) -> bool:
    r"""Whether the answer leaves no operation that the ground truth does not leave, as 37 \cdot 43 does of 1591."""
    if _WRITTEN_OUT.fullmatch(ground_truth):
        is_irrational = [number.doit().is_rational for number in _numbers(value)] == [False]
        return bool(_WRITTEN_OUT.fullmatch(answer)) or is_irrational
    pattern = _COMMAND if gold.free_symbols else f"{_COMMAND}|{_ARITHMETIC}"  # arithmetic is none among letters
    left = {match.lastgroup or match[0] for match in re.finditer(pattern, answer)}
    return left <= {match.lastgroup or match[0] for match in re.finditer(pattern, ground_truth)}


def _close(gold: Parsed, value: Parsed) -> bool:
    """False for numbers, also in lists, that are equal only because both were rounded to 0, and for 1 beside 1%."""
    expected = _numbers(gold)
    return not expected or all(any(_near(one, other) for one in expected) for other in _numbers(value))


def _numbers(parsed: Parsed) -> list[sympy.Expr]:
    parsed = sympy.Tuple(*parsed) if isinstance(parsed, sympy.MatrixBase) else parsed
    parts = parsed.args if isinstance(parsed, (sympy.Set, sympy.Tuple)) else [parsed]
    return [part for part in parts if isinstance(part, sympy.Expr) and part.is_number]


def _near(gold: sympy.Expr, value: sympy.Expr) -> bool:
    if gold.has(sympy.UnevaluatedExpr) != value.has(sympy.UnevaluatedExpr):  # a percent sign
        return bool(gold != 1)
    return gold == value or bool(abs((gold - value).doit().evalf()) <= RELATIVE_TOLERANCE * abs(gold.doit().evalf()))
