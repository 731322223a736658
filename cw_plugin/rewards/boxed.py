r"""Finds the boxed answer of a text in a single pass, even over hostile text, and normalises answers."""

from __future__ import annotations

import math
import numbers
import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any, NamedTuple

_TOKENS = re.compile(r"\\(?:boxed|fbox)\s*\{|\\.|[{}]", re.DOTALL)
# What may stand between two boxes of one list: a separator, "and" or "or", and words or a name that say which part is
# meant ("for part (a) and", "if n is even, and", "apples and", "and y_2 =").
_MAX_JOINT = 70  # characters; longer text is never a joint
_LAYOUT = re.compile(r"\\(?:text|textrm|mathrm|mbox|quad|qquad)(?![a-zA-Z])|\\[()\[\],;:! \\]|[{}$*~&\s]+")
_JOINT = re.compile(
    r"(?:(?:\(?(?:for|in|if|when) [^.,;?!]+|[a-z]+)[,;]? (?=(?:and|or)\b))?"
    r"[,; ]*(?:(?:and|or)\b)?[,; ]*(?:\\?[a-zA-Z]+(?:_ ?\w+)?(?:\(\w+\))? ?=)?"
)


class Box(NamedTuple):
    r"""One ``\boxed{content}``, with the positions of its first and one past its last character."""

    start: int
    end: int
    content: str


def find_boxes(text: str) -> list[Box]:
    r"""All innermost ``\boxed{...}`` with matching braces, in the order of the text."""
    boxes: list[Box] = []
    open_braces: list[tuple[int, int] | None] = []  # of a box: where it starts, and where its content does
    for token in _TOKENS.finditer(text):
        kind = token.group()
        if kind == "{":
            open_braces.append(None)
        elif kind.endswith("{") and len(kind) > 2:
            open_braces.append((token.start(), token.end()))
        elif kind == "}" and open_braces:
            box = open_braces.pop()
            if box is not None and not (boxes and boxes[-1].start > box[0]):
                boxes.append(Box(box[0], token.end(), text[box[1] : token.start()].strip()))
    return boxes


def final_boxed(text: str) -> str | None:
    r"""The content of the last ``\boxed{...}`` and of the boxes listed right before it, joined by commas; None without
    a box.

    A list of boxes is one answer with several parts, not several guesses. A box that is repeated counts once.
    """
    boxes = find_boxes(text)
    if not boxes:
        return None
    first = len(boxes) - 1
    while first > 0 and _is_joint(text[boxes[first - 1].end : boxes[first].start]):
        first -= 1
    parts = [box.content for box in boxes[first:]]
    return parts[0] if len(set(parts)) == 1 else ", ".join(parts)


def _is_joint(between: str) -> bool:
    return len(between) <= _MAX_JOINT and bool(_JOINT.fullmatch(" ".join(_LAYOUT.sub(" ", between).split())))


def number_text(value: Any) -> str | None:
    """A finite number as text, ``42.0`` as ``42``; None for anything else, including a bool."""
    is_number = isinstance(value, (numbers.Real, Decimal)) and not isinstance(value, bool)  # numpy's are numbers.Real
    if not is_number or not math.isfinite(value):
        return None
    return str(value).removesuffix(".0")


PERCENT = re.compile(r"%|\b(?:percent(?:age)?|per cent|pct)\b")
_REWRITES: list[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]]] = [
    (re.compile(r"(?<!\\)\$"), ""),
    (re.compile(r"(?<=\d),\\!(?=\d{3})"), ""),  # 29,\!322 is a number, also within a fraction
    # 31 250, 31\,250 and 31{,}250 are one number; math-verify itself reads 31,250.
    (
        re.compile(r"(?<![\w.,^}])[1-9]\d{0,2}(?:(?:,?\\[,;: ]|\{,\}|[ ~])\d{3})+(?![\d/])"),
        lambda match: re.sub(r"\D", "", match.group()),
    ),
    (re.compile(r"(?<=\d)\{,\}(?=\d)"), "."),  # LaTeX's decimal comma
    # 50\%, 50 percent and 50 are one answer; math-verify does not read a percent sign in a box.
    (re.compile(r"\\(?:text|textrm|mathrm|mbox)\s?\{\s?(?:percent(?:age)?|per cent|pct)\.?\s?\}"), ""),
    (re.compile(r"\\?%|\b(?:percent(?:age)?|per cent|pct)\b"), ""),
    # Numbers as programs print them. math-verify reads 4e7 as 4 times Euler's number times 7, and cannot read 3./2.
    (re.compile(r"(?<![\w.\\])(\d+(?:\.\d+)?)[eE]([+-]?\d+)(?![\w.])"), r"\1 \\times 10^{\2}"),
    (re.compile(r"(?<=\d)\.(?![\d\\])"), ""),
    (re.compile(r"^\s*\\approx(?![a-zA-Z])"), ""),
    (re.compile(r"(?<![\s.,;:])(?:\\[.,;\s]|[\s.,;:])+$"), ""),  # matches once per run of characters, so in linear time
]


def normalize(answer: str) -> str:
    """A ground truth or a response's answer, rewritten so that math-verify reads it correctly."""
    for pattern, replacement in _REWRITES:
        answer = pattern.sub(replacement, answer)
    return answer.strip()


_LIST = re.compile(r"[(\[;]|\\\{|,(?!\d)")
_DECIMAL_COMMA = re.compile(r"(?<![\d.,])(?![1-9]\d{0,2},\d{3}(?!\d))(\d+),(\d+)(?![\d.,])")
_DECIMAL_POINT = re.compile(r"\d\.\d")


def point_for_comma(answer: str, other: str) -> str:
    """``1,22`` as ``1.22``, if ``other``, with which it will be compared, has a decimal point and no comma.

    Alone, ``1,22`` is a list of 1 and 22. A list in brackets or with spaces is never a number, nor is ``1,222`` one
    with decimals.
    """
    if "," in other or not _DECIMAL_POINT.search(other) or _LIST.search(answer):
        return answer
    return _DECIMAL_COMMA.sub(r"\1.\2", answer)
