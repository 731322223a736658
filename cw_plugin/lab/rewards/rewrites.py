r"""How people and programs write answers, and how math-verify reads them: one list, :data:`REWRITES`.

Each rewrite is applied to the ground truth and to the answer, in this order.
"""

import re
import unicodedata
from collections.abc import Callable
from decimal import Decimal
from typing import NamedTuple

import sympy
from pylatexenc.latexencode import UnicodeToLatexEncoder
from sympy.printing.latex import accepted_latex_functions


class Rewrite(NamedTuple):
    """A pattern and its replacement, and a ground truth and an answer that is right only with them."""

    name: str
    pattern: str
    replacement: str | Callable[[re.Match[str]], str]
    ground_truth: str
    answer: str


_ENCODER = UnicodeToLatexEncoder(unknown_char_policy="keep", unknown_char_warning=False)
_CHARACTERS = str.maketrans({  # what pylatexenc takes for text, and punctuation
    "\u00b0": r"^\circ ", "\u00d7": r"\times ", "\u00b7": r"\cdot ", "\u00f7": r"\div ", "\u2212": "-", "\u2044": "/",
    "\u221a": r"\sqrt", "\u3002": ".",
})  # fmt: skip
_FORMS = {"<super>": "^{%}", "<sub>": "_{%}", "<fraction>": r"\frac{%}", "Sc": r"\text{%}", "Pd": "-", "Cf": ""}


def _character(character: str) -> str:
    """A character as LaTeX; as it is, if it belongs to a text. Sc is a currency, Pd a dash, Cf an invisible one."""
    plain = unicodedata.normalize("NFKC", character).translate(_CHARACTERS)
    for kind in (unicodedata.decomposition(character).partition(" ")[0], unicodedata.category(character)):
        if kind in _FORMS:
            return _FORMS[kind].replace("%", plain.replace("/", "}{"))
    mathematics = re.fullmatch(r"\\ensuremath\{(.*)\}", _ENCODER.unicode_to_latex(character))
    return f"{mathematics[1]} " if mathematics and plain == character else plain


def _characters(match: re.Match[str]) -> str:
    """Characters beyond ASCII as LaTeX, those in a row in one exponent."""
    return "".join(map(_character, match[0])).replace("}^{", "").replace("}_{", "")


_POWERS = {
    "hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12,
    "\u5341": 1, "\u767e": 2, "\u5343": 3, "\u4e07": 4, "\u842c": 4, "\u4ebf": 8, "\u5104": 8,
}  # fmt: skip


def _scaled(match: re.Match[str]) -> str:
    """A number times powers of ten."""
    exponent = match["exponent"] or sum(_POWERS[word] for word in re.findall("|".join(_POWERS), match["words"]))
    return f"{Decimal(match['number']).scaleb(int(exponent)):f}{match['text'] or ''}"


TEXT = r"\\(?:text|textrm|textbf|textit|textnormal|mathrm|mbox|hbox|operatorname)\*?\s*"
_END = r"(?![a-zA-Z])"  # of a command or a word
_FUNCTION = rf"(?:{'|'.join({*accepted_latex_functions, 'exp'} - {'re', 'im', 'frac', 'root', 'arg'})})"
_ARGUMENT = r"(?=\s*\}?\s*[\\(^_{\w])"
_POWER_OF_UNIT = r"\b\.?(?:\s*\^\s*(?:\d|\{\d\}))?"
_UNIT = rf"(?:[mcdk]m|[km]g|m[lL]|ft|[A-Z]{{3}}|[a-zA-Z]{{4,}}|m(?=\s*/)|mph|day|men|min|sec){_POWER_OF_UNIT}"
_NUMBER = r"(?<![a-zA-Z\d.,/^_\\])(?P<number>\d+(?:\.\d+)?)"
_EXPONENT = (
    r"(?:[eE]|\s*(?:\*|\\times|\\cdot)\s*10\s*\^\s*(?P<brace>\{\s*)?)"
    r"(?P<exponent>[+-]?\d{1,3})(?!\w|\.\d)(?(brace)\s*\})"
)
_IN_WORDS = rf"(?:\\,|\s)*(?P<text>{TEXT}\{{)?\s*(?P<words>(?:(?:{'|'.join(_POWERS)})s?\s*)+)(?![a-zA-Z\d])"
_SEPARATOR = rf"\\(?:lor|q?quad){_END}|{TEXT}\{{[\s,]*(?:and|or)?[\s,]*\}}|(?<![\\a-zA-Z])(?:and|or){_END}"

# fmt: off
UNICODE = Rewrite("Unicode", r"[^\x00-\x7f]+", _characters, "x^2", "x\u00b2")
POWER_OF_TEN = Rewrite("power of ten", rf"{_NUMBER}(?:{_EXPONENT}|{_IN_WORDS})", _scaled, "5000000", "5 million")
REWRITES = [
    UNICODE,
    Rewrite("digits in groups", r"(?<![\w.,^}])[1-9]\d{0,2}(?:(?:,?\\!\s*|\\[,;: ]|\{,\}|[ ~])\d{3})+(?![\d/])",
            lambda match: re.sub(r"\D", "", match[0]), "14916", "14{,}916"),
    Rewrite("layout", rf"\\(?:left|right|math(?:bf|it|sf)|boldsymbol|bm){_END}|^\s*\\approx{_END}|(?<!\\)\\[,;:! ]|~",
            " ", "t(0,4]", r"t\left(0,4\right]"),
    Rewrite("dollar", r"\\\$", r"\\text{ dollar }", r"\$36", "36 dollars"),
    Rewrite("formula", r"\$|(?<!\\)\\[()\[\]]", "", "$125$ miles", "125"),
    Rewrite("upright", rf"{TEXT}\{{\s*([ei]|-?[\d.]+|pi|{_FUNCTION}{_ARGUMENT})\s*\}}", r" \1 ", "2e", r"2\mathrm{e}"),
    Rewrite("function", rf"(?<![\\a-zA-Z])(?=(?:pi|{_FUNCTION}{_ARGUMENT}){_END})", r"\\", r"\ln 2", "ln(2)"),
    Rewrite("inverse function", r"(?<![\\a-zA-Z])a(sin|cos|tan)(?=\s*\()", r"\\arc\1", r"\arcsin(1/3)", "asin(1/3)"),
    Rewrite("fraction", r"\\[dt]?frac\s*(\\[a-z]+)\s*(\d|\\[a-z]+)", r"\\frac{\1}{\2}", r"\pi/2", r"\frac\pi 2"),
    Rewrite("root", r"\\sqrt\s*(?:\(([^()]*)\)|(\d+))", r"\\sqrt{\1\2}", r"2\sqrt{13}", "2\u221a13"),
    Rewrite("letter", rf"\\gamma{_END}|(?<=[_{{])\\(?:odot|oplus){_END}|(?<![a-zA-Z\\])E(?=\s*_)", r"\\mathcal{\g<0>}",
            r"\gamma^2-1", r"(\gamma-1)(\gamma+1)"),
    Rewrite("power", r"(?:\*\*|\^(?=\s*-))\s*(?:(-?)\s*(\d+|\w+)|\(([^()]*)\))", r"^{\1\2\3}", "x^2", "x**2"),
    Rewrite("empty set", rf"\\varnothing{_END}", r"\\emptyset", r"\emptyset", r"\varnothing"),
    Rewrite("degree", rf"\\degree{_END}", r"^\\circ", "60", r"60\degree"),
    Rewrite("repeating decimal", r"(\d+\.\d*)(\\(?:overline|bar|dot)\s*(?:\{\d+\}|\d+)(?:\d*\\dot\s*(?:\{\d\}|\d))?)",
            lambda match: sympy.latex(sympy.sympify(f"{match[1]}[{re.sub('[^0-9]', '', match[2])}]")),  # of 0.1[6]
            r"\frac{1}{6}", r"0.1\overline{6}"),
    POWER_OF_TEN,
    Rewrite("list in words", rf"(?:[\s,]*(?:{_SEPARATOR}))+[\s,]*", ", ", "3, -5", r"a = 3 \lor a = -5"),
    Rewrite("point without decimals", r"(?<=\d)\.(?![\d\\])", "", "-3./2", r"-\frac{3}{2}"),
    Rewrite("percent", rf"(?:{TEXT}\{{\s*)?(?:\\?%|\b(?:percent(?:age)?|per cent|pct)\b)(?:\.?\s*\}})?", r"\\%",
            "0.28", r"28\text{ percent}"),
    Rewrite("unit without \\text", rf"(?<=[\d}})])\s*({_UNIT}(?:(?:\s*/\s*|\s+)[a-zA-Z]+{_POWER_OF_UNIT})*)",
            r"\\text{ \1 }", "5 people", "5"),
    Rewrite("base", r"(?<![\d^])(\d+)\s*\)?\s*_", r"\1\\text{ base }", "101_2", "(101)_2"),
    Rewrite("names of tuples", r"\([a-z](?:,\s*[a-z])+\)\s*=\s*(?=\()", "", "(1,2), (3,4)", "(x,y)=(1,2), (x,y)=(3,4)"),
]
# fmt: on


def rewritten(answer: str) -> str:
    """A ground truth or an answer as math-verify reads it rightly."""
    for rewrite in REWRITES:
        answer = re.sub(rewrite.pattern, rewrite.replacement, answer)
    return answer.rstrip(".,;:\\ \t\n").lstrip(",;: \t\n")
