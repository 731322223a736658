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
from latex2sympy2_extended.sets import FiniteSet as ListOrSet
from math_verify import LatexExtractionConfig
from math_verify.grader import should_treat_as_complex

from cw_plugin.lab.rewards.rewrites import CHOICE_IN_WORDS, TEXT, rewritten

Parsed: TypeAlias = sympy.Basic | sympy.MatrixBase  # what math-verify reads in an answer

_DEFAULT = LatexExtractionConfig(boxed_match_priority=0)
# Units are left in the text: units.py compares them.
LATEX = replace(_DEFAULT, normalization_config=replace(_DEFAULT.normalization_config, units=False))
_CASES = ConversionConfig(lowercase_symbols=False)  # r is another letter than R
_ABSOLUTE = re.compile(r"\||\\sqrt\s*\{?\s*[a-zA-Z]")  # |z| and \sqrt{z} differ for real and complex z

# What may stand on both sides of the letter of a choice: commands for fonts and spaces, and Markdown.
_OPENED = (
    r"(?:\\(?:text(?:bf|rm|it|sf|tt)?|math(?:bf|rm|it|sf|tt)|bf|rm|boldsymbol)(?![a-zA-Z])|\\[,;:! ]|\*\*|[{$_\s])*"
)
_CLOSED = r"(?:\\(?:q?quad(?![a-zA-Z])|hspace\*?\{[^{}]*\}|[,;:! ])|\*\*|_(?![\d{])|[}$~\s])*"
_LETTER_OF_CHOICE = re.compile(  # "(B)" of "(B) 12", "\textbf{B}." of "\textbf{B}. 12", "Option B:" of "Option B: 12"
    rf"{_OPENED}(?:{CHOICE_IN_WORDS}{_OPENED})?\(?{_OPENED}"
    rf"(?P<letter>[A-H]){_CLOSED}(?:\){_CLOSED}[:.]?|[:.](?=[\s\d\\$*}}])){_CLOSED}"
)
_OTHER_LETTER = re.compile(rf"{_OPENED}\(?{_OPENED}[A-H]{_CLOSED}\)?{_CLOSED}")
_NO_TEXT_OF_CHOICE = re.compile(
    r"$|[,+/^_!']|\\?%"  # (B)^2
    rf"|(?:{TEXT}\{{)?\s*(?:is\s+)?(?:not|wrong|incorrect|false)\b"
    rf"|(?:{TEXT}\{{)?\s*(?:or|and)\b"
    r"|.*[A-H]\s*\}?\s*[):.]"  # (A) 1 (B) 2
)
_WORDS = re.compile(  # "\text{ cm}^2" with its exponent, and characters beyond ASCII; but not the index of "v_\text{A}"
    rf"\s*(?<![_^])(?<![_^]\{{)"
    rf"(?:(?!\\operatorname\*?\s*\{{\w+\}}\s*[\w\\(\[])"  # nor a function, as "\operatorname{erf}(x)"
    rf"{TEXT}\{{((?:[^{{}}]|\{{[^{{}}]*\}})*\}}(?:\s*\^\s*\{{?-?\d\}}?)?)|([^\x00-\x7f]+))\s*"
)
_WORDS_STOOD_HERE = "\0"
_BETWEEN_NUMBERS = re.compile(  # "3\text{ to }2", "2h30m"; and "1 2", which latex2sympy would add
    r"[\w}]\0[\w\\{]|\d\s*[a-zA-Z][a-zA-Z\s]*\d+(?![\d\s]*\^)|(?<![a-z])(?<![a-z]\s)(?<![\w^.])\d+(?:\.\d+)?\s+\.?\d"
)
_WORDS_ALONE = re.compile(r"(?:[a-zA-Z]{3,}|[nN]o|[IVX]{2})(?:\s+[a-zA-Z]+)*|[\s(){}\[\].,;:\0]*")
_OUTSIDE = r"(?![^(\[{]*[)\]}])"  # What stands before this is outside of brackets.
_COMMA = rf"(?:[,;]|\\\\(?![\s\S]*\\end)){_OUTSIDE}"  # or the end of a line, which no matrix has
_EQUALS = rf"(?<![<>!])(?<!\\not)=(?!=){_OUTSIDE}|\\approx(?![a-zA-Z])"
_VALUE_OF_FUNCTION = r"\s*[a-zA-Z](?:_\{?\w+\}?)?\s*\(\s*-?\d+(?:\.\d+)?\s*\)\s*"
_DERIVATIVE = r"\s*\\frac\{d\w\}\{d\w\}\s*"
_NAME = re.compile(  # "\text{Area} =", "area =", "f(1) =" and "\frac{dy}{dx} ="
    rf"(?:(?<=,)|^)((?:(?!{_EQUALS})[^,<>])*{TEXT}\{{[^<>=]*|\s*[a-zA-Z]{{3,}}[\sa-zA-Z]*|{_VALUE_OF_FUNCTION}"
    rf"|{_DERIVATIVE})(?:{_EQUALS})"
)
_LETTER_BEFORE_EQUALS = re.compile(r"(?:^|[=,;])\s*([a-zA-Z])(?:_\{?\w+\}?)?\s*(?==)")
_OF_SEVERAL_LETTERS = re.compile(
    r"(?<![\w\\{=(])(?P<letters>[a-zA-Z](?:_\w)?(?:\s*=\s*[a-zA-Z](?:_\w)?)+)"
    r"\s*=\s*(?P<value>[^=,;()\[\]]*[^\s=,;()\[\]])(?!\s*=)"
)
_PLURAL = re.compile(r"(?<=[a-z]{2}[a-rt-z])s\b")
_FOR_ALL = rf"(?:{TEXT}\{{\s*)?\b(?:for (?:all|any|each|every|some(?!\W*[xtn]\b))|where)\b|\\forall"
_AFTER = rf"(?:(?<=[,;(])|(?<=\s\s)|(?:{TEXT}\{{\s*)?\b(?:for|with)\s*\}}?)"
_IN_NUMBERS = (  # "\in \mathbb{Z}^{+}", and "\in Z"
    r"\\in\s*(\\(?:mathbb|Bbb)\s*\{?\s*[A-Z]|\{?\s*[RZNQ](?![a-zA-Z]))\}?"
    r"((?:\s*[\^_]\s*(?:\{[^{}]*\}|[-+*\d])|\s*\\setminus.*)?)"
)
_MEMBERS = rf"{_AFTER}\s*[a-zA-Z](?:\s*,\s*[a-zA-Z])*\s*{_IN_NUMBERS}"
_DOMAIN = re.compile(rf"(?<=[\w)}}\]])[\s,;(\\]*(?:{_FOR_ALL}|{_MEMBERS}).*$")  # ", x \in \mathbb{R}" at the end
_FUNCTION_AND_DOMAIN = re.compile(  # "a_n = 2^n, n \ge 1", "f(x) = 1/x (x \ne 0)"
    r"(?P<formula>\s*(?:[a-zA-Z](?:\s*\^\s*\{-1\})?\s*(?:\(\s*(?P<of>[a-z])\s*\)|_\{?(?P<index>[a-z])\}?)"
    r"|y(?=[^,]*(?P<x>x)))"
    rf"\s*=[^=&]*?)[\s,;(\\]*(?:{TEXT}\{{\s*for\s*\}}\s*)?"
    r"\b(?P<domain>(?:(?P=of)|(?P=index)|(?P=x))\s*(?:>|\\[gn]e)[^=<,;]*)"
)
_INEQUALITY = re.compile(r"\\[gl]e|(?<![_{])[<>]")  # after a domain; not in \mathbb{Z}_{>0}
_SPELLING = r"\s|(?<=\\[gln]e)q(?:slant)?"  # \geq and \geqslant are \ge
_CONDITION = re.compile(  # 0 and 1 are bounds of most numbers, and k > 0 says the same as k \ge 1
    r"\b(?:odd|even|prime|composite)\b|\\ne|=\s*[^=\s]+\s*$|\\(?:equiv|n?mid)(?![a-zA-Z]).*|\\in\s*(?:\\\{|[\[(]).*"
    r"|(?:[<>]|\\[lg]e(?:q|qslant)?(?![a-zA-Z]))\s*(?!-?[01]\b)[^\s,;)}<>=]+"
)
_BARS = re.compile(r"[a-z](?=\()|\\?\||[()]")  # and brackets, also those of a function
_UNKNOWN = re.compile(  # x, a_n, f(x)
    r"(?<![a-zA-Z\\])[a-zA-Z](?![a-zA-Z])(?:_(?:\w|\{\w+\}))?(?:(?<=[a-z])\([a-z]\))?"
)
_COEFFICIENT = r"\s*(?:\d+(?:\.\d+)?|\\[dt]?frac\s*(?:\{\d+\}|\d)\s*(?:\{\d+\}|\d))\s*"
_TIMES = r"(?:\\cdot|\\times|\*|\\,)"
_LINEAR = re.compile(  # in one unknown x
    rf"(?=.*[-+\d])(?:{_COEFFICIENT}[-+]|\s*-)?(?:{_COEFFICIENT}{_TIMES}?)?"
    rf"\s*(?:x|\\[dt]?frac\s*\{{\s*x\s*(?:[-+]{_COEFFICIENT})?\}}\s*\{{\d+\}})\s*"
    rf"(?:(?:{_TIMES}|/){_COEFFICIENT})?(?:[-+]{_COEFFICIENT})?"
)


class Answer(NamedTuple):
    """A ground truth or an answer, rewritten and taken apart."""

    text: str  # what math-verify is given, "" for words alone
    words: str  # what it would leave out
    name: str  # the left sides in words
    domain: frozenset[str]  # the sets of numbers for which it is said to hold
    conditions: frozenset[str]  # what else restricts it
    whole: str

    @property
    def letters(self) -> set[str]:
        """The letters for which it has values, without their indices: x for x_1 = 1, x_2 = 2."""
        return set(_LETTER_BEFORE_EQUALS.findall(self.text))


def choices(answer: str) -> tuple[str, ...]:
    """The letter and the text of a choice such as (B) 12; the answer alone if it is none."""
    letter = _LETTER_OF_CHOICE.match(answer)
    text = answer[letter.end() :] if letter else ""
    if letter is None or _NO_TEXT_OF_CHOICE.match(text):
        return (answer,)
    if _OTHER_LETTER.fullmatch(text):  # (B) C names two choices
        return (f"{letter['letter']}, {text}",)
    if text.count("{") < text.count("}"):  # of \text{(B) 12}
        text = text.strip().removesuffix("}")
    return letter["letter"], text


def with_each_letter(answer: str) -> str:
    """An answer such as x = y = 1, z = 2 as x = 1, y = 1, z = 2."""
    return _OF_SEVERAL_LETTERS.sub(
        lambda found: ", ".join(f"{letter} = {found['value']}" for letter in found["letters"].split("=")), answer
    )


@functools.lru_cache(maxsize=4096)
def read(answer: str) -> Answer:
    """A ground truth or an answer, rewritten and taken apart; words alone, also between numbers, are no text."""
    return _taken_apart(rewritten(answer))


def _taken_apart(whole: str) -> Answer:
    function = _FUNCTION_AND_DOMAIN.fullmatch(whole)
    formula = function["formula"] if function else whole
    holds_for = whole.removeprefix(formula) + "".join(found[0] for found in _DOMAIN.finditer(formula))
    domain = frozenset(_numbers(letter[-1], part) for letter, part in re.findall(_IN_NUMBERS, holds_for))
    if function and not function["index"]:  # x > 1 is not x \ge 1, but n > 0 is n \ge 1
        domain |= {re.sub(_SPELLING, "", function["domain"]).rstrip(")}")}
    conditions = {re.sub(_SPELLING, "", found) for found in _CONDITION.findall(holds_for)}
    if any(numbers[0] in "ZN" for numbers in domain):
        conditions |= {"an inequality"} if _INEQUALITY.search(holds_for) else set()
    else:
        conditions.discard(r"\ne")  # of a function, whose formula says so
    text, words = _without_words(_NAME.sub("", _DOMAIN.sub("", formula)))
    name = re.sub(r"\s+(?=[()])|(?<=\()\s+", "", " ".join("".join(_NAME.findall(whole)).split()))
    return Answer(text, words, name, domain, frozenset(conditions), whole)


class Part(NamedTuple):
    """A part of a list."""

    name: str  # its left side or its words, as x in x = 1; "" if it has none
    value: Answer


def parts(answer: Answer) -> list[Part]:
    """The parts of a list; one, if it is none."""
    found = []
    for whole in re.split(_COMMA, answer.whole):
        *left_sides, right_side = re.split(_EQUALS, whole)
        value = _taken_apart(right_side)
        name = _PLURAL.sub("", " ".join(said("=".join(left_sides) or value.words)))
        found.append(Part(name, value))
    return found


def _numbers(letter: str, part: str) -> str:
    r"""The name of a set of numbers: "Z+" for \mathbb{Z}^{+} and \mathbb{Z}_{>0}, and "N" for most parts of it."""
    part = re.sub(rf"[{{}}.]|{_SPELLING}", "", part)
    if letter == "N" or (letter == "R" and part.startswith(r"\setminus")):
        return letter
    return letter + ("+" if part in ("^+", "_+", "_>0") else part)


def said(answer: str) -> tuple[str, ...]:
    """The words, numbers and signs of an answer; capitals count in those of one letter."""
    plain = re.sub(rf"{TEXT}(?=\{{)|\\cdot", "", answer)
    words = re.findall(r"\\[a-zA-Z]+|[a-zA-Z]+|\d+(?:\.\d+)?|[^\s\\,;:.(){}\[\]]", plain)
    return tuple(word if len(word) == 1 else word.casefold() for word in words)


def _without_words(answer: str) -> tuple[str, str]:
    r"""The text and its words, apart: "5" and "cm" of "5\text{ cm}"; "" and all of it, if that needs words."""
    text = _WORDS.sub(_WORDS_STOOD_HERE, answer)
    if _BETWEEN_NUMBERS.search(text) or _WORDS_ALONE.fullmatch(text):
        return "", answer
    units = ["".join(match).strip(" {}") for match in _WORDS.findall(answer)]
    if len(set(units)) == 1:  # of all numbers; but 3 m, 4 m, 5 cm are others than 3 m, 4 cm, 5 cm
        units = units[:1]
    words = re.sub(r"\bM(?=[WJVNA]\b|Hz|Pa|eV)", "mega", " ".join(units)).casefold()  # and mW is milliwatts
    words = re.sub(rf"{_PLURAL.pattern}|[{{}}.]|\\cdot|\\times|\s+(?=[\^/])|(?<=[\^/])\s+", "", words)
    words = re.sub(r"\^1\b", "", re.sub(r"\s*\b([a-z]+)\s*\^-(\d)", r"/\1^\2", words))  # m s^-1 is m/s
    return text.replace(_WORDS_STOOD_HERE, " ").strip(), " ".join(words.split())


def symbols(text: str) -> list[str]:
    """The commands, numbers and signs of a text, to compare what math-verify cannot read."""
    text = re.sub(r"(?<=\\[gln]e)q(?:slant)?(?![a-zA-Z])|,\s*(?=&)|\\\\\s*(?=\\end)", "", text)
    return re.findall(r"\\[a-zA-Z]+|\d+|\S", text)


def _sides(answer: str) -> list[list[str]]:
    """What stands on each side of the equals signs, for each part of an answer."""
    return [re.split(_EQUALS, part) for part in re.split(_COMMA, answer)]


def leaves_unknown(answer: str) -> bool:
    """Whether an answer such as 2x = 10 or x + 1 = 6 does not say what its unknown is."""
    return any(len(sides) == 2 and _LINEAR.fullmatch(_UNKNOWN.sub("x", sides[0])) for sides in _sides(answer))


def left_sides(answer: str) -> set[str]:
    r"""What stands before the equals signs; of n(A \cup B) and |A \cup B|, the same."""
    return {"".join(symbols(_BARS.sub("", side))) for sides in _sides(answer) for side in sides[:-1]}


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
    for form in (answer, values):  # the second one for "x =" before what latex2sympy cannot read as a side
        with suppress(Exception):  # latex2sympy and sympy raise anything on an unusual answer
            return _read_by_latex2sympy(form, has_percent_sign=r"\%" in answer)
    return None


def _read_by_latex2sympy(form: str, has_percent_sign: bool) -> Parsed | None:
    """The value, or None if it is not finite or not what stands there; any exception, if it cannot be read."""
    text = normalize_latex(r"\boxed{" + form.replace(r"\%", "") + "}", LATEX.normalization_config)
    is_real = not (_ABSOLUTE.search(text) and should_treat_as_complex(text))
    value = latex2sympy(text, is_real=is_real, normalization_config=None, conversion_config=_CASES)
    if _has_lost_brackets(value, text) or value.has(sympy.nan, sympy.zoo):
        return None
    value = value.as_immutable() if isinstance(value, sympy.MatrixBase) else value
    # sympy would work out dy/dx as 0.
    value = value.xreplace({each: sympy.Symbol(str(each)) for each in value.atoms(sympy.Derivative)})
    return convert_to_pct(value) if has_percent_sign else value


def _has_lost_brackets(value: Parsed, text: str) -> bool:
    """Whether latex2sympy has made a set of [1,1], a tuple of [2,1], or the empty set of (2,1]."""
    if "[" not in text and "]" not in text:
        return False
    is_interval_no_more = isinstance(value, (sympy.FiniteSet, sympy.Tuple)) and not isinstance(value, ListOrSet)
    return is_interval_no_more or value == sympy.S.EmptySet


def _side_by_side(text: str) -> Parsed | None:
    """A ratio, or a time, a date or a score, which equals only itself; latex2sympy would read quotients and sums."""
    plain, parts = text.replace(" ", ""), text.split(":")
    if re.fullmatch(r"\d+(?:[:/-]\d+)+", plain) and not re.fullmatch(r"\d+/\d+", plain):
        first, *others = re.split("[:/-]", plain)
        is_ratio = len(parts) > 1 and not others[0].startswith("0")
        is_reduced = is_ratio and math.gcd(*map(int, [first, *others])) == 1
        has_two_digits = {len(part) for part in others} == {2}  # 3:30
        if len(parts) == 1 or (has_two_digits and not is_reduced):
            return sympy.Symbol(plain.lstrip("0") if len(parts) > 1 else plain)  # 03:30 is 3:30
    if len(parts) < 3 or re.search(r"[,;]|\\\{", text):
        return None
    numbers = [value for value in map(parsed, parts) if isinstance(value, sympy.Expr)]
    if len(numbers) < len(parts):
        return None
    divisor = next((number for number in numbers if number != 0), 1)
    return sympy.Function("ratio")(*(number / divisor for number in numbers))
