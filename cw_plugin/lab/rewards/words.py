r"""Answers in words and in other characters, rewritten as mathematics: ``5\text{ million}`` as ``5 \times 10^{6}``.

math-verify drops words after a number, as it drops units. So it finds 5 million equal to 5, and 3 squared to 3.
"""

import re
import unicodedata
from collections.abc import Callable

_TEXT = r"\\(?:text|textrm|textbf|textnormal|mathrm|mbox|rm)\s*\{\s*"
_GAP = r"(?:\\[,;: ]|[\s~])*"
_AFTER_A_NUMBER = rf"(?<=[\d)}}]){_GAP}"
_WHOLE_NUMBER = r"(?<![\w.,^}/])(\d+)"

_POWERS = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_PARTS = {"half": 2, "halves": 2, "third": 3, "fourth": 4, "fifth": 5, "sixth": 6, "seventh": 7, "eighth": 8,
          "ninth": 9, "tenth": 10, "hundredth": 100, "thousandth": 1000}  # fmt: skip
_POWER = rf"(?:{'|'.join(_POWERS)})s?"
_PART = rf"({'|'.join(_PARTS)})s?"
# Words after a number that make another number of it, or several, and that are not rewritten.
_CONDITION = (
    r"squared|cubed|factorial|at (?:least|most)"
    r"|(?:or|and) (?:more|less|fewer|greater|larger|smaller|higher|lower|above|below|over|under|up)"
)

_REALS = r"\\in\s*(?:\\mathbb\s*\{?\s*R\s*\}?|\\R(?![a-zA-Z]))"
_SUCH_THAT = r"(?:\\mid(?![a-zA-Z])|\\middle\s*\||\\[bB]ig[glmr]*\s*\||\\vert|\\colon|\||:)"
_BUILDER = re.compile(
    rf"\s*(?:\\left\s*)?\\\{{\s*([a-zA-Z])\s*(?:{_REALS})?{_GAP}{_SUCH_THAT}{_GAP}(?:\1\s*{_REALS}\s*,)?"
    r"(.*(?:[<>]|\\[lg]eq?(?:slant)?(?![a-zA-Z])|\\neq?(?![a-zA-Z])).*?)(?:\\right\s*)?\\\}\s*"
)

_DASHES = "\u2010\u2011\u2012\u2013\u2212\ufe63"  # hyphens, the figure and the en dash, minus signs
_SIGN = re.compile(rf"(?<![\w)}}\]])[{_DASHES}](?=[\d.(\\])")
_ARABIC = {"\u066b": ".", "\u066c": ",", "\u066a": "%"}  # decimal point, separator of thousands, percent sign
_FULLWIDTH = {chr(code): chr(code - 0xFEE0) for code in range(0xFF01, 0xFF5F)}
_CHARACTERS = str.maketrans(_ARABIC | _FULLWIDTH)


def plain_characters(text: str) -> str:
    """A text in ASCII where that is possible without a change of meaning.

    Digits of every script become 0 to 9, fullwidth characters those of ASCII, and a dash before a number a minus. A
    dash between words stays.
    """
    if text.isascii():
        return text
    text = _SIGN.sub("-", text.translate(_CHARACTERS))
    return "".join(str(unicodedata.decimal(character, character)) for character in text)


def as_mathematics(answer: str) -> str:
    r"""An answer with its words for numbers, its lists in words and its sets in builder notation as mathematics.

    ``3\text{ halves}`` and ``3 1/2`` are fractions, ``\text{, and }`` is a comma, and ``\{x \mid 0 < x \leq 1\}`` is
    ``0 < x \leq 1``. A word in ``\text{}`` is replaced, and what follows it there stays.
    """
    answer = answer.translate(dict.fromkeys(map(ord, _DASHES), "-"))
    builder = _BUILDER.fullmatch(answer)
    if builder:
        answer = builder[2]
    for pattern, rewrite in _REWRITES:
        answer = pattern.sub(rewrite, answer)
    return answer


def split_conditions(answer: str) -> tuple[str, list[str]]:
    r"""An answer without words that change a number, and these: ``5`` and ``["or more"]`` of ``5\text{ or more}``."""
    found: list[str] = []

    def note(match: re.Match[str]) -> str:
        found.append(match["word"])
        return _rest_of_text(match)

    return _CONDITIONS.sub(note, answer), found


def _words(before: str, word: str) -> re.Pattern[str]:
    r"""A word that follows something, as such or at the beginning of a ``\text{}``."""
    return re.compile(rf"{before}(?P<text>{_TEXT})?(?P<word>{word})(?![a-zA-Z])\.?\s*(?P<end>\}})?")


def _rest_of_text(match: re.Match[str]) -> str:
    r"""The command of a ``\text{}`` in which other words follow; and the bracket that closes something else."""
    if match["text"]:
        return "" if match["end"] else match["text"]
    return match["end"] or ""


def _power_of_ten(match: re.Match[str]) -> str:
    power = sum(_POWERS[word.removesuffix("s")] for word in match["word"].split())
    return rf" \times 10^{{{power}}} {_rest_of_text(match)}"


def _fraction(match: re.Match[str]) -> str:
    word = match["word"]
    below = _PARTS.get(word) or _PARTS[word.removesuffix("s")]
    return rf"\frac{{{match[1]}}}{{{below}}}{_rest_of_text(match)}"


def _and_a_half(match: re.Match[str]) -> str:
    return rf"{match[1]}\frac{{1}}{{2}}{_rest_of_text(match)}"


def _pi(match: re.Match[str]) -> str:
    return rf" \pi {_rest_of_text(match)}"


def _mixed_number(match: re.Match[str]) -> str:
    whole, above, below = match.groups()
    return rf"{whole}\frac{{{above}}}{{{below}}}" if int(above) < int(below) else match[0]


_CONDITIONS = _words(_AFTER_A_NUMBER, _CONDITION)
_REWRITES: list[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]]] = [
    (_words(_AFTER_A_NUMBER, rf"{_POWER}(?:\s+{_POWER})*"), _power_of_ten),
    (_words(_WHOLE_NUMBER + _GAP, _PART), _fraction),
    (_words(_WHOLE_NUMBER + _GAP, "and (?:a|one)[ -]half"), _and_a_half),
    (_words(_AFTER_A_NUMBER, "pi"), _pi),
    (re.compile(_WHOLE_NUMBER + r"(?:\\[,;: ]|[ ~])+(\d+)/(\d+)(?![\d/.])"), _mixed_number),
    (re.compile(rf"{_TEXT}(?:,\s*(?:and|or)?|(?:and|or)\s*,)\s*\}}"), ", "),
]
