r"""How people and programs write answers, and how math-verify reads them: one list, :data:`REWRITES`.

Each rewrite is applied to the ground truth and to the answer, in this order.
"""

import re
import unicodedata
from collections.abc import Callable
from decimal import Decimal
from typing import NamedTuple

from pylatexenc.latexencode import UnicodeToLatexEncoder
from sympy.printing.latex import accepted_latex_functions


class Rewrite(NamedTuple):
    """A pattern and its replacement, and a ground truth and an answer whose verdict they make ``right`` or wrong."""

    name: str
    pattern: str
    replacement: str | Callable[[re.Match[str]], str]
    ground_truth: str
    answer: str
    right: bool = True


_ENCODER = UnicodeToLatexEncoder(unknown_char_policy="keep", unknown_char_warning=False)
_CHARACTERS = str.maketrans({  # what pylatexenc takes for text, and punctuation
    "\u00b0": r"^\circ ", "\u00d7": r"\times ", "\u00b7": r"\cdot ", "\u00f7": r"\div ", "\u2212": "-", "\u2044": "/",
    "\u221a": r"\sqrt", "\u3002": ".",
})  # fmt: skip
_FORMS = {"<super>": "^{%s}", "<sub>": "_{%s}", "<fraction>": r"\frac{%s}"}
_CATEGORIES = {"Cf": "", "Zs": " ", "Pd": "-"}  # invisible characters, spaces, dashes


def _character(character: str) -> str:
    """A character as LaTeX; as it is, if it is ASCII or belongs to a text."""
    plain = unicodedata.normalize("NFKC", character).translate(_CHARACTERS)
    category = unicodedata.category(character)
    form = _FORMS.get(unicodedata.decomposition(character).partition(" ")[0])
    if form:
        return form % plain.replace("/", "}{")
    if category == "Sc":  # a currency
        return rf"\text{{{character}}}"
    mathematics = re.fullmatch(r"\\ensuremath\{(.*)\}", _ENCODER.unicode_to_latex(character))
    if mathematics and plain == character:
        return f"{mathematics[1]} "
    return _CATEGORIES.get(category, plain)


def characters(match: re.Match[str]) -> str:
    """Characters beyond ASCII as LaTeX, those in a row in one exponent."""
    return "".join(map(_character, match[0])).replace("}^{", "").replace("}_{", "")


def _repeating(match: re.Match[str]) -> str:
    """The digits once through, less those before the period, over as many nines and zeros."""
    whole, before, period = match[1], match[2], re.sub(r"\D", "", match[3])
    above = int(whole + before + period) - int(whole + before)
    return rf"\frac{{{above}}}{{{'9' * len(period)}{'0' * len(before)}}}"


_POWERS = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_POWER = rf"(?:{'|'.join(_POWERS)}|[\u5341\u767e\u5343\u4e07\u842c\u4ebf\u5104])s?"  # in Chinese, from 10 to 10^8


def _times_powers(match: re.Match[str]) -> str:
    value = Decimal(match["number"])
    for power in re.findall(_POWER, match["powers"]):
        value *= 10 ** _POWERS[power.rstrip("s")] if power.isascii() else int(unicodedata.numeric(power))
    return f"{value:f}{match['text'] or ''}"


def _capitals(match: re.Match[str]) -> str:
    """Capitals in another font where their small letters occur, too: math-verify reads R/r as 1."""
    letters = set(_COMMANDS_OR_CAPITAL.sub("", match[0]))

    def in_another_font(found: re.Match[str]) -> str:
        capital = found[1] or ""
        return rf"\mathcal{{{capital}}}" if capital.lower() in letters else found[0]

    return _COMMANDS_OR_CAPITAL.sub(in_another_font, match[0])


_COMMANDS_OR_CAPITAL = re.compile(r"\\(?:\w*text\w*|begin|end|math\w+)\s*\{[^{}]*\}|\\[a-zA-Z]+|([A-Z])")
TEXT = r"\\(?:text|textrm|textbf|textit|textnormal|mathrm|mbox|hbox|operatorname)\*?\s*"
GAP = r"(?:\\[,;:! ]|[\s~])*"
_FUNCTION = rf"(?:{'|'.join({*accepted_latex_functions, 'exp'} - {'re', 'im', 'frac', 'root', 'arg'})})"
_ARGUMENT = r"(?=\s*\}?\s*[\\(^_{\w])"
_POWER_OF_UNIT = r"\b\.?(?:\s*\^\s*(?:\d|\{\d\}))?"
_UNIT = rf"(?:[mcdk]m|[km]g|m[lL]|ft|[A-Z]{{3}}|[a-zA-Z]{{4,}}|m(?=\s*/)|mph|day|men|min|sec){_POWER_OF_UNIT}"

# fmt: off
UNICODE = Rewrite("Unicode", r"[^\x00-\x7f]+", characters, "x^2", "x\u00b2")
POWER_OF_TEN = Rewrite("power of ten in words",
            rf"(?P<number>\d+(?:\.\d+)?){GAP}(?P<text>{TEXT}\{{)?\s*(?P<powers>{_POWER}(?:\s*{_POWER})*)(?![a-zA-Z\d])",
            _times_powers, "5000000", r"5\text{ million}")
REWRITES = [
    UNICODE,
    Rewrite("dollar", r"\\\$", r"\\text{ dollar }", r"\$36", "36 dollars"),
    Rewrite("formula", r"\$|(?<!\\)\\[()\[\]]", "", "$125$ miles", "125"),
    Rewrite("font", r"\\(?:math(?:bf|it|sf)|boldsymbol|bm)(?![a-zA-Z])", "", "204", r"\mathbf{204}"),
    Rewrite("upright", rf"{TEXT}\{{\s*([ei]|-?\d+(?:\.\d+)?)\s*\}}", r"{\1}", "2e", r"2\mathrm{e}"),
    Rewrite("upright function", rf"{TEXT}\{{\s*(pi|{_FUNCTION}{_ARGUMENT})\s*\}}", r" \1 ",
            r"\sin x", r"\operatorname{sin} x"),
    Rewrite("function", rf"(?<![\\a-zA-Z])(?=pi(?![a-zA-Z])|{_FUNCTION}(?![a-zA-Z]){_ARGUMENT})", r"\\",
            r"\ln 2", "ln(2)"),
    Rewrite("inverse function", r"(?<![\\a-zA-Z])a(sin|cos|tan)(?=\s*\()", r"\\arc\1", r"\arcsin(1/3)", "asin(1/3)"),
    Rewrite("fraction without braces", r"\\[dt]?frac\s*(\\[a-zA-Z]+)\s*(\d|\\[a-zA-Z]+)", r"\\frac{\1}{\2}",
            r"2007 + \frac\pi 2", r"2007 + \frac{\pi}{2}"),
    Rewrite("root", r"\\sqrt\s*(?:\(([^()]*)\)|(\d+))", r"\\sqrt{\1\2}", r"2\sqrt{13}", "2\u221a13"),
    Rewrite("symbol with another meaning", r"\\gamma(?![a-zA-Z])|(?<![a-zA-Z\\])E(?=\s*_)", r"\\mathcal{\g<0>}",
            r"\gamma^2-1", r"(\gamma-1)(\gamma+1)"),
    Rewrite("command as an index", r"_\{?\\(odot|oplus)(?![a-zA-Z])\s*\}?", r"_{\1}",
            r"2L_{\odot}", r"L_{\odot} \cdot 2"),
    Rewrite("both cases of a letter", r"(?s).+", _capitals, r"\frac{R}{r}", "1", right=False),
    Rewrite("power", r"\*\*\s*(-?\w+|\([^()]*\))", r"^{\1}", "x^2", "x**2"),
    Rewrite("negative exponent", r"\^\s*(-\s*\d+)", r"^{\1}", r"1.2 \times 10^{-5}", r"1.2 \times 10^-5"),
    Rewrite("empty set", r"\\varnothing(?![a-zA-Z])", r"\\emptyset", r"\emptyset", r"\varnothing"),
    Rewrite("degree", r"\\degree(?![a-zA-Z])", r"^\\circ", "60", r"60\degree"),
    Rewrite("repeating decimal",
            r"(\d+)\.(\d*)(\\(?:overline|bar)\s*\{\d+\}|\\dot\s*(?:\d|\{\d\})(?:\d*\\dot\s*(?:\d|\{\d\}))?)",
            _repeating, r"\frac{1}{6}", r"0.1\overline{6}"),
    POWER_OF_TEN,
    Rewrite("or", r"\\lor(?![a-zA-Z])|(?<![\\a-zA-Z]),?\s*(?:and|or)(?![a-zA-Z])", ",",
            "3, -5", r"a = 3 \lor a = -5"),
    Rewrite("list in words", rf"{TEXT}\{{[\s,]+\}}|\\q?quad(?![a-zA-Z])", ",", "6, 8", r"6 \quad 8"),
    Rewrite("comma after comma", r",(?:\s*,)+", ", ", "1, 2, 3", r"1\text{, }2,\text{ and }3"),
    Rewrite("number of a program", r"(?<![\w.\\])(\d+(?:\.\d+)?)[eE]([+-]?\d+)(?![\w.])", r"\1 \\times 10^{\2}",
            "4.4e7", "44000000"),
    Rewrite("digits in groups", r"(?<![\w.,^}])[1-9]\d{0,2}(?:(?:,?\\!\s*|\\[,;: ]|\{,\}|[ ~])\d{3})+(?![\d/])",
            lambda match: re.sub(r"\D", "", match[0]), "14916", "14{,}916"),
    Rewrite("point without decimals", r"(?<=\d)\.(?![\d\\])", "", "-3./2", r"-\frac{3}{2}"),
    Rewrite("approximately", r"^\s*\\approx(?![a-zA-Z])", "", r"\approx 8.24", "8.24"),
    Rewrite("percent", rf"(?:{TEXT}\{{\s*)?(?:\\?%|\b(?:percent(?:age)?|per cent|pct)\b)(?:\.?\s*\}})?", r"\\%",
            r"28\text{ percent}", "0.28"),
    Rewrite("unit without \\text",
            rf"(?<=[\d}})]){GAP}({_UNIT}(?:(?:\s*/\s*|\s+)[a-zA-Z]+{_POWER_OF_UNIT})*)", r"\\text{ \1 }",
            "5 people", "5"),
    Rewrite("names of tuples", r"\([a-z](?:\s*,\s*[a-z])+\)\s*=\s*(?=\()", "",
            "(2,32), (8,18)", "(x, y)=(2,32), (x, y)=(8,18)"),
]
# fmt: on


def rewritten(answer: str) -> str:
    """A ground truth or an answer as math-verify reads it rightly."""
    for rewrite in REWRITES:
        answer = re.sub(rewrite.pattern, rewrite.replacement, answer)
    return answer.rstrip(".,;:\\ \t\n").lstrip(",;: \t\n")
