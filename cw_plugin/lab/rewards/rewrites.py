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

from cw_plugin.lab.rewards.boxed import final_boxed


class Rewrite(NamedTuple):
    """What is replaced, and by what."""

    name: str
    pattern: str
    replacement: str | Callable[[re.Match[str]], str]


_ENCODER = UnicodeToLatexEncoder(unknown_char_policy="keep", unknown_char_warning=False)
_CHARACTERS = str.maketrans({  # what pylatexenc takes for text, and punctuation
    "\u00b0": r"^\circ ", "\u00d7": r"\times ", "\u00b7": r"\cdot ", "\u00f7": r"\div ", "\u2212": "-", "\u2044": "/",
    "\u221a": r"\sqrt", "\u2192": r"\to ", "\u3002": ".",
    "\u2266": r"\le ", "\u2267": r"\ge ",
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


TEXT = r"\\(?:text(?:rm|bf|it|sf|tt|up|normal)?|math(?:rm|sf|tt)|[mhf]box|operatorname|emph|rm)\*?\s*"
CHOICE_IN_WORDS = r"\b(?i:(?:the )?(?:(?:final|correct) )?(?:answer|option|choice)(?: is)?:?\s+)"
_END = r"(?![a-zA-Z])"  # of a command or a word
# The words for or and and, in the languages of the data.
OR = (
    rf"(?:(?i:or|either|oder|ou|lub|veya)|\b\u0438\u043b\u0438\b){_END}"
    r"|\u6216\u8005?|\u307e\u305f\u306f|\ub610\ub294|\u2228"
)
AND = rf"(?:(?i:and|both|und|et)|\b\u0438\b){_END}|\u548c|\u4e0e|\u4e14|\u4ee5?\u53ca|\u3001"
_FUNCTION = rf"(?:{'|'.join({*accepted_latex_functions, 'exp'} - {'re', 'im', 'frac', 'root', 'arg'})})"
_ARGUMENT = r"(?=\s*\}?\s*[\\(^_{\w])"
_LETTER = r"[a-zBDEGHIMO-UX-Z](?<![msghl])"  # that is no unit
_PRODUCT = r"(?:[xyz]{2,3}|abc?|bc|pq|mn|uv)"  # of letters, and no unit
_SEGMENT = r"(?:(?!AD|BC|CE|CC)[A-F]{2}|PQ|QR|PR|XY|YZ|MN|O[A-F])"  # and no unit or era
_TERM = r"(?:[+*/^-]\s*(?:\d+|[a-z])|[xyzabn]\s*\^\s*\{?\d\}?)"
_COMMAND = r"\\(?!mu|Omega|circ|text|degree|%)(?:[^{}]|\{[^{}]*\})*"
_POWER_OF_UNIT = r"\b\.?(?:\s*\^\s*(?:\d|\{-?\d\}))?"
_WORD = r"(?!(?i:abc|bcd|pqr|xyz))(?:[A-Z]{3}|[a-zA-Z]{4,})"  # and no product of letters
_UNIT = (
    rf"(?:[mcdk]m|[km]g|m[lL]|k[WVJN]|M[WJ]|[kM]?(?:Hz|eV)|k?Pa|ft|(?i:[ap]\.?m)|{_WORD}|m(?=\s*/)|mph|day|m[ei]n|sec"
    r"|(?:hr|yr|yd|lb)s?|oz)"
    rf"{_POWER_OF_UNIT}"
)
_UNITS = rf"{_UNIT}(?:(?:\s*/\s*|\s+)[a-zA-Z]+{_POWER_OF_UNIT})*"
_NUMBER = r"(?<![a-zA-Z\d.,/^_\\])(?P<number>\d+(?:\.\d+)?)"
_EXPONENT = (
    r"(?:[eE]|\s*(?:\*|\\times|\\cdot)\s*10\s*\^\s*(?P<brace>\{\s*)?)"
    r"(?P<exponent>[+-]?\d{1,3})(?!\w|\.\d)(?(brace)\s*\})"
)
_IN_WORDS = (  # and no kilometre, kilogram or kilowatt in Chinese
    rf"(?:\\,|\s)*(?P<text>{TEXT}\{{)?\s*"
    rf"(?P<words>(?:(?:{'|'.join(_POWERS)})s?\s*)+)(?![a-zA-Z\d])(?!(?<=\u5343)[\u7c73\u514b\u74e6])"
)
_IN_TEXT = rf"{TEXT}\{{[^{{}}]*\}}"
_BETWEEN = r"(?:\s*\^\s*\{?-?\d\}?)?\s*(?:/|\\cdot|\\times)?\s*"  # units
_UNITS_IN_TEXT = rf"{_IN_TEXT}(?:{_BETWEEN}{_IN_TEXT})*"
_IS_REAL = r"\\in\s*\\mathbb\s*\{?\s*R\s*\}?"
_SIGNED = r"-?(?:\d+\s+)?\d[\d.,/]*\s*"
_DEGREE = r"\^\s*\{?\\circ\s*\}?"
_BRACED = r"\{(?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*\}"  # with what is within it
_GROUP = r"(?:\{[^{}]*\}|\d)"  # an argument
_FRACTION = r"\\[dt]?frac\s*"
_DOTS = r"(?:\\[lcd]?dots[bcmio]?(?![a-zA-Z])|\.{3})"
_ROOT = r"\\sqrt\s*(?:\[[^\]]*\])?\s*"
EITHER = "; "  # stands for "or" between inequalities, where a comma is "and": forms.py joins the regions
_SEPARATOR = (
    rf"\\(?:lor|vee|land|wedge|q?quad){_END}|{TEXT}\{{[\s,]*(?:{OR}|{AND})?[\s,]*\}}"
    rf"|(?<![\\a-zA-Z{{])(?<!\{{ )(?:{OR}|{AND})"
)


def _separator(match: re.Match[str]) -> str:
    r"""A comma; EITHER, where one of two inequalities holds; but p \wedge q is no list."""
    beside = match.string[: match.start()], match.string[match.end() :]
    if re.search(r"land|wedge", match[0]) and not all(re.search(r"[<>=]|\\[lgn]e", side) for side in beside):
        return match[0]
    is_either = re.search(rf"\\(?:lor|vee)|{OR}", match[0]) and re.search(r"[<>]|\\[lgn]e", match.string)
    return EITHER if is_either else ", "


def _without_braces(match: re.Match[str]) -> str:
    """What stands in braces that belong together, of which there may be several."""
    inner = match[0].strip()
    while inner.startswith("{") and final_boxed(rf"\boxed{inner}") == inner[1:-1].strip():
        inner = inner[1:-1].strip()
    return inner


def _both_signs(match: re.Match[str]) -> str:
    r"""Each part of a list or a set that has \pm or \mp within brackets, where latex2sympy cannot read them, as two.

    The signs of a part are read together: (\pm 1, \mp 2) is (1, -2), (-1, 2).
    """
    parts = re.split(r"([,;](?![^(\[{]*(?<!\\)[)\]}])|\\[{}])", match[0])
    within_brackets = re.compile(rf"[(\[{{][^)\]}}]*\\(?:pm|mp){_END}")
    return "".join(_with_each_sign(part) if within_brackets.search(part) else part for part in parts)


def _with_each_sign(part: str) -> str:
    plus, minus = rf"\\pm{_END}", rf"\\mp{_END}"  # and not \pmod
    first = re.sub(minus, "- ", re.sub(plus, "+ ", part))
    second = re.sub(plus, "- ", re.sub(minus, "+ ", part))
    return f"{first}, {second}"


_BRACKETS = {"lbrace": r"\{", "rbrace": r"\}", "lbrack": "[", "rbrack": "]", "lparen": "(", "rparen": ")"}


_ENVIRONMENT = (
    r"(?:\\\{\s*)?\\begin\{((?:align|gather)(?:ed|\*)?|split|equation\*?|cases|array)\}(?:\{[lcr]*\})?"
    r"([\s\S]*?)\\end\{\1\}"
)


def _lines(match: re.Match[str]) -> str:
    """The lines of an environment as a list, and those that go on with an equals sign, as one line.

    Cases and arrays must be all of the answer, and their lines equations for a letter: others define a function, or are
    a vector.
    """
    environment, content = match.groups()
    content = re.sub(r"&\s*=", "=", content.strip())
    lines = [line.strip().rstrip(",;.") for line in re.split(r"\\\\(?:\[.*?\])?", content)]
    if environment in ("cases", "array"):
        beside = re.sub(rf"{_ENVIRONMENT}|{_SEPARATOR}", "", match.string)
        if beside.strip(" ,;.") or not all(re.match(r"[a-zA-Z](?:_\w)?\s*=(?!.*&)", line) for line in lines):
            return match[0]
    return ", ".join(filter(None, lines)).replace("&", "").replace(", =", " =")


def _assignments(match: re.Match[str]) -> str:
    """(x, y) = (1, 2) as x = 1, y = 2: in another order, it is the same answer, and (y, x) = (1, 2) is not."""
    names, values = (part.split(",") for part in match.groups())
    return match[0] if len(names) != len(values) else ", ".join(map("=".join, zip(names, values, strict=True)))


def _unit(match: re.Match[str]) -> str:
    """A unit in one command."""
    plain = re.sub(rf"\\[dt]?frac|{TEXT}", "", match[0]).replace("}}{{", "/")
    return r"\text{" + re.sub("[{}]", " ", plain) + "}"


# fmt: off
UNICODE = Rewrite("Unicode", r"[^\x00-\x7f]+", _characters)
MARKDOWN = Rewrite(
    "Markdown", r"(?<![a-zA-Z0-9)}\]*_`])[*_`]{1,3}(?=[^\s*_`])([^*_`\n]+)(?<=\S)[*_`]{1,3}(?![a-zA-Z0-9(])"
    r"|</?(?:b|i|u|em|strong)>", r"\1"
)
POWER_OF_TEN = Rewrite("power of ten", rf"{_NUMBER}(?:{_EXPONENT}|{_IN_WORDS})", _scaled)
SIGN_IN_WORDS = Rewrite(
    "sign in words", rf"(?i:{TEXT}\{{\s*(?:minus|negative)\s*\}}|\b(?:minus|negative)\b)\s*(?=\d)", "-"
)
REWRITES = [
    UNICODE,
    MARKDOWN,
    Rewrite("digits in groups",
            r"(?<![\w.,^}])[1-9]\d{0,2}"
            r"(?:(?:(?:\\!)?,?\\!\s*|\s*\\[,;: ]\s*|'|(?:\\text)?\{\\?,\}|[ ~])\d{3})+(?![\d/])",
            lambda match: re.sub(r"\D", "", match[0])),
    Rewrite("layout", r"\\(?:left|right)(?:\.|(?![a-zA-Z]))"
            r"|\\(?:math(?:bf|it|normal|bin|rel|ord)|boldsymbol|bm|pmb|[bB]igg?[lrm]?|(?:display|text|script)style"
            r"|bf|it|(?:no)?limits|tiny|(?:normal|footnote)size|small|[lL]arge|LARGE|[hH]uge"
            r"|(?:math)?strut|mathord|hfill?|smash|ensuremath|framebox|(?:rm|sf|tt)(?=\s*[-\d])|kern\s*-?[\d.]+[a-z]{2}"
            r"|notag|nonumber|checkmark)(?![a-zA-Z])"
            rf"|\\(?:(?:text)?color(?:\[\w+\])?|[hv]space\*?|[hv]?phantom|tag\*?|label)\s*{_BRACED}"
            r"|(?<!\^)(?<!\^\{)\\underline(?![a-zA-Z])"  # a falling power
            r"|(?<=\\\\)\[-?[\d.]+(?:pt|ex|em|mm|cm)\]"  # between the rows of a matrix
            rf"|^\s*\\(?:approx|(?:[lL]ong)?[rR]ightarrow|to|implies|therefore){_END}|(?<!\\)\\[,;:! ]|~", " "),
    Rewrite("binomial", r"\{\s*(\w+)\s*\\choose\s*(\w+)\s*\}", r"\\binom{\1}{\2}"),
    Rewrite("braces around all of it", r"^\s*\{[\s\S]*\}\s*$", _without_braces),
    Rewrite("brackets", rf"\\(lbrace|rbrace|lbrack|rbrack|lparen|rparen){_END}", lambda match: _BRACKETS[match[1]]),
    Rewrite("both signs", rf"^[\s\S]*\\(?:pm|mp){_END}[\s\S]*$", _both_signs),
    Rewrite("colon", rf"(?<![a-zA-Z])\{{:\}}|\\colon{_END}", ":"),
    Rewrite("sign in braces", r"(?<![\^_a-zA-Z])\{([+-])\}", r"\1"),
    Rewrite("colon after words",
            rf"((?:^|[,;])\s*{TEXT}\{{[^{{}}:]*?[a-zA-Z]{{2}}[^{{}}:]*?)(?:\}}\s*:|\s*(?::|\bis:?)\s*\}}(?=.*\w))",
            r"\1} ="),
    Rewrite("dollar", r"\\\$", r"\\text{ dollar }"),
    Rewrite("formula", r"\$|(?<!\\)\\[()\[\]]", ""),
    Rewrite("equations in an environment", _ENVIRONMENT, _lines),
    Rewrite("upright without braces",
            r"(?<!\^)\{\\(?:rm|sf|tt)\s+([^{}]*)\}|(?<![\^{])\\math(?:rm|sf|tt)\s+([a-zA-Z])", r"\\mathrm{\1\2}"),
    Rewrite("upright",
            rf"{TEXT}\{{\s*([ei!:+-]|{_SIGNED}(?:\\?%|{_DEGREE})?|pi|{_FUNCTION}{_ARGUMENT}|{_COMMAND}|{_TERM})\s*\}}"
            rf"|(?:(?<=[\w)}}=+*/-])|^)\s*{TEXT}\{{\s*({_LETTER}|{_PRODUCT})\s*\}}(?!\s*\\Omega)"
            rf"|(?<=[\d}}])\s*{TEXT}\{{\s*({_SEGMENT})\s*\}}", r" \1\2\3 "),  # 2AB
    Rewrite("number and unit in a text", rf"(?<![\d.])({TEXT}\{{)\s*({_SIGNED})(?<=\s)(?={_UNITS}\s*\}})", r"\2 \1"),
    Rewrite("units in several commands", rf"{_UNITS_IN_TEXT}{_BETWEEN}{_IN_TEXT}"
            rf"|\\[dt]?frac\{{{_UNITS_IN_TEXT}\}}\{{{_UNITS_IN_TEXT}(?:\^\d)?\}}"
            rf"|(?<=[\d\s])\\mu\s*{_IN_TEXT}|{_IN_TEXT}\s*\\Omega{_END}", _unit),
    Rewrite("ohm", r"(?:^|(?<==))(\s*-?[\d.]+)\s*\\Omega\s*$", r"\1\\text{ ohm }"),
    Rewrite("function", rf"(?<![\\a-zA-Z])(?=(?:pi|{_FUNCTION}{_ARGUMENT}){_END})", r"\\"),
    Rewrite("inverse function", r"(?<![\\a-zA-Z])a(sin|cos|tan)(?=\s*\()", r"\\arc\1"),
    Rewrite("slanted fraction", r"\\(?:nice|s)frac(?=\s*\{)", r"\\frac"),
    Rewrite("unit in brackets", rf"(?<=[\d}}])\s*\(\s*({_IN_TEXT}(?:\s*\^\s*\{{?-?\d\}}?)?)\s*\)", r"\1"),
    Rewrite("fraction",
            rf"{_FRACTION}(?:(\\[a-z]+)\s*(?:(\d|\\[a-z]+)|\{{([^{{}}]*)\}})|(\d)\s*(\\(?![dt]?frac|sqrt)[a-z]+))",
            r"\\frac{\1\4}{\2\3\5}"),
    Rewrite("root", r"\\sqrt\s*(\[[^\]]*\])?\s*(?:\(([^()]*)\)|(\d+|\\(?![dt]?frac|sqrt)[a-z]+))", r"\\sqrt\1{\2\3}"),
    Rewrite("fraction or root without braces around it",
            rf"({_ROOT}|\^|{_FRACTION}{_GROUP})\s*({_FRACTION}{_GROUP}\s*{_GROUP}|{_ROOT}{_GROUP})", r"\1{\2}"),
    Rewrite("letter", rf"\\gamma{_END}|(?<=[_{{])\\(?:odot|oplus){_END}|(?<![a-zA-Z\\])[EI](?=\s*_)",
            r"\\mathcal{\g<0>}"),
    Rewrite("letter T",
            rf"((?<!matrix}})(?<=[\w}}])|\([^(),]*\))\s*\^\s*(?:T\b|\\top\b|\{{\s*(?:T|\\top|{TEXT}\{{T\}})\s*\}})",
            r"\1^{\\mathcal{T}}"),  # which latex2sympy would leave out, as if this were a matrix of letters
    Rewrite("dots after a whole number", rf"(?<![\d.])(\d+)\s*{_DOTS}", r"\1, \\mathcal{D}"),
    Rewrite("dots", rf"(?<!\d){_DOTS}", r"\\mathcal{D}"),
    Rewrite("prime", r"(?<=[a-zA-Z}])'+", lambda match: "^{" + r"\prime" * len(match[0]) + "}"),
    Rewrite("product", r"(?<![\w^.}])(\d+)\s*\((?=\s*(?:\\[dt]?frac|\d+\s*/))", r"\1 \\cdot ("),
    Rewrite("power", r"(?:\*\*|\^(?=\s*-))\s*(?:(-?)\s*(\d+|\w+)|\(([^()]*)\))", r"^{\1\2\3}"),
    Rewrite("empty set", rf"\\varnothing{_END}", r"\\emptyset"),
    Rewrite("arrow", rf"\\(?:long)?rightarrow{_END}", r"\\to "),
    Rewrite("union", r"\\big(cup|cap)(?!\s*[_a-zA-Z])", r"\\\1"),
    Rewrite("degree", rf"(?:\\degree{_END}|\^\s*\{{?\s*\\circ\s*\}}?)\s*(?:{TEXT}\{{)?([CF]\b|(?=\d)|\b)\}}?"
            r"|(?<=\d)(?<![_^]\d)\s*('+)", r"\\text{ degree \1 \2 }"),  # minutes and seconds, too
    Rewrite("repeating decimal",
            r"(\d+\.\d*)(?=\D*0*[1-9])(\\(?:overline|bar|dot)\s*(?:\{\d+\}|\d+)(?:\d*\\dot\s*(?:\{\d\}|\d))?|\(\d+\))",
            lambda match: sympy.latex(sympy.sympify(f"{match[1]}[{re.sub('[^0-9]', '', match[2])}]"))),  # of 0.1[6]
    POWER_OF_TEN,
    SIGN_IN_WORDS,
    Rewrite("list in words", rf"(?:[\s,]*(?:{_SEPARATOR}))+[\s,]*", _separator),
    Rewrite("mixed number", r"(?<![\w.,/^}])(\d+)\s+(\d+)\s*/\s*(\d+)", r"\1\\frac{\2}{\3}"),
    Rewrite("tuple of letters", r"^\s*\(((?:\s*[a-zA-Z]\s*,)+\s*[a-zA-Z]\s*)\)\s*=\s*\(([^()]*)\)\s*$", _assignments),
    Rewrite("unequal to several", r"^\s*([a-z])\s*\\neq?\s*([^\s,<>=]+)\s*,\s*([^\s,<>=a-z]+)\s*$",
            r"\1 \\ne \2, \1 \\ne \3"),
    Rewrite("set of one point", r"^\s*\\\{\s*(\([^()]*\))\s*\\\}\s*$", r"\1"),
    Rewrite("set of solutions",
            rf"^\s*\\\{{\s*([a-zA-Z])\s*(?:{_IS_REAL}\s*)?(?:\\mid|\||:)((?:(?!\\\}}).)*)\\\}}\s*$", r"\2"),
    Rewrite("all real numbers", rf"^\s*(?:{TEXT}\{{)?\s*(?i:(?:all\s+)?real(?:\s+number)?s)\s*\}}?$", r"\\mathbb{R}"),
    Rewrite("function of one", rf"{TEXT}\{{([a-zA-Z]+)\}}\s?(?=[(\[](?!\\text|[^()\[\]]*,))", r"\\operatorname{\1}"),
    Rewrite("point without decimals", r"(?<=\d)\.(?!\s*(?:\d|\\(?:overline|bar|d?dot)(?![a-zA-Z])))", ""),
    Rewrite("percent", rf"({TEXT}\{{\s*)?(?:\\?%|\b(?:percent(?:age)?|per cent|pct)\b)(?(1)\.?\s*\}})", r"\\%"),
    Rewrite("unit without \\text", rf"(?<=[\d}})])\s*({_UNITS})",
            r"\\text{ \1 }"),
    Rewrite("choice", rf"{CHOICE_IN_WORDS}(?=\(?[A-H]\)?\s*\}}?$)|(?<=^[A-H])\s*\)$", ""),
    # Words between numbers, so that reading.read takes all of it for words: it equals the same digits and base alone.
    Rewrite("base", r"(?<![\d^])(\d+)\s*\)?\s*_", r"\1\\text{ base }"),
]
# fmt: on


def rewritten(answer: str, rewrites: list[Rewrite] | None = None) -> str:
    """A ground truth or an answer as math-verify reads it rightly, by all rewrites or by these."""
    for _, pattern, replacement in rewrites or REWRITES:
        answer = re.sub(pattern, replacement, answer)
    return answer.rstrip(".,;:\\ \t\n").lstrip(",;: \t\n")
