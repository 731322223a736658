r"""Finds the boxed answer of a text in a single pass, even over hostile text, and normalises answers."""

import math
import numbers
import re
from decimal import Decimal
from typing import Any

from cw_plugin.lab.rewards.words import as_mathematics, plain_characters

_TOKENS = re.compile(r"(?P<box>\\(?:boxed|fbox)\s*\{)|\\.|(?P<open>\{)|(?P<close>\})", re.DOTALL)
# What may stand between two boxes of one list: a separator, "and" or "or", and words or a name that say which part is
# meant ("for part (a) and", "if n is even, and", "apples and", "and y_2 =").
_MAX_JOINT = 70  # characters; longer text is never a joint
_LAYOUT = re.compile(r"\\(?:text|textrm|mathrm|mbox|quad|qquad)(?![a-zA-Z])|\\[()\[\],;:! \\]|[{}$*~&\s]+")
_JOINT = re.compile(
    r"(?:(?:\(?(?:for|in|if|when) [^.,;?!]+|[a-z]+)[,;]? (?=(?:and|or)\b))?"
    r"[,; ]*(?:(?:and|or)\b)?[,; ]*(?:\\?[a-zA-Z]+(?:_ ?\w+)?(?:\(\w+\))? ?=)?"
)


def final_boxed(text: str) -> str | None:
    r"""The content of the last ``\boxed{...}``, and of the boxes listed right before it, joined by commas.

    Without a box, it is None. A list of boxes is one answer with several parts, not several guesses. A box that is
    repeated counts once. Of boxes in boxes, the innermost counts.
    """
    boxes: list[tuple[int, int, str]] = []
    opened: list[re.Match[str]] = []
    for token in _TOKENS.finditer(text):
        if token.lastgroup in ("box", "open"):
            opened.append(token)
        elif token.lastgroup == "close" and opened:
            opening = opened.pop()
            if opening.lastgroup == "box" and not (boxes and boxes[-1][0] > opening.start()):
                boxes.append((opening.start(), token.end(), text[opening.end() : token.start()].strip()))
    parts: list[str] = []
    following = 0
    for start, end, content in reversed(boxes):
        if parts and not _is_joint(text[end:following]):
            break
        parts.insert(0, content)
        following = start
    if not parts:
        return None
    return parts[0] if len(set(parts)) == 1 else ", ".join(parts)


def _is_joint(between: str) -> bool:
    return len(between) <= _MAX_JOINT and bool(_JOINT.fullmatch(" ".join(_LAYOUT.sub(" ", between).split())))


def number_text(value: Any) -> str | None:
    """A finite number as text, ``42.0`` as ``42``; None for anything else, including a bool."""
    is_number = isinstance(value, (numbers.Real, Decimal)) and not isinstance(value, bool)  # numpy's are numbers.Real
    if not is_number or not math.isfinite(value):
        return None
    return str(value).removesuffix(".0")


PERCENT = r"%|\b(?:percent(?:age)?|per cent|pct)\b"
_REWRITES: list[tuple[str, Any]] = [
    (r"(?<!\\)\$", ""),
    (r"(?<=\d),\\!(?=\d{3})", ""),  # 29,\!322 is a number, also within a fraction
    # 31 250, 31\,250 and 31{,}250 are one number; math-verify itself reads 31,250.
    (
        r"(?<![\w.,^}])[1-9]\d{0,2}(?:(?:\\[,;: ]|\{,\}|[ ~])\d{3})+(?![\d/])",
        lambda match: re.sub(r"\D", "", match.group()),
    ),
    (r"(?<=\d)\{,\}(?=\d)", "."),  # LaTeX's decimal comma
    # 50\%, 50 percent and 50 are one answer; math-verify does not read a percent sign in a box.
    (r"\\(?:text|textrm|mathrm|mbox)\s?\{\s?(?:percent(?:age)?|per cent|pct)\.?\s?\}", ""),
    (rf"\\?(?:{PERCENT})", ""),
    # Numbers as programs print them. math-verify reads 4e7 as 4 times Euler's number times 7, and cannot read 3./2.
    (r"(?<![\w.\\])(\d+(?:\.\d+)?)[eE]([+-]?\d+)(?![\w.])", r"\1 \\times 10^{\2}"),
    (r"(?<=\d)\.(?![\d\\])", ""),
    (r"^\s*\\approx(?![a-zA-Z])", ""),
]


def normalize(answer: str) -> str:
    """A ground truth or a response's answer, rewritten so that math-verify reads it correctly."""
    answer = as_mathematics(plain_characters(answer))
    for pattern, replacement in _REWRITES:
        answer = re.sub(pattern, replacement, answer)
    return answer.rstrip(".,;:\\ \t\n").strip()


def point_for_comma(answer: str, other: str) -> str:
    """``1,22`` as ``1.22``, if ``other``, with which it will be compared, has a decimal point and no comma.

    Alone, ``1,22`` is a list of 1 and 22. A list in brackets or with spaces is never a number, nor is ``1,222`` one
    with decimals.
    """
    if "," in other or not re.search(r"\d\.\d", other) or re.search(r"[(\[;]|\\\{|,(?!\d)", answer):
        return answer
    return re.sub(r"(?<![\d.,])(?![1-9]\d{0,2},\d{3}(?!\d))(\d+),(\d+)(?![\d.,])", r"\1.\2", answer)
