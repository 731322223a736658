r"""Finding the boxed answer of a text, in one pass over it however hostile it is, and writing answers one way."""

from __future__ import annotations

import re
from typing import NamedTuple

_TOKENS = re.compile(r"\\(?:boxed|fbox)\s*\{|\\.|[{}]", re.DOTALL)
# What may stand between the boxes of one answer: "$\boxed{1}$, $\boxed{2}$ and $\boxed{3}$".
_CONNECTOR = re.compile(r"[\s$,;&]{0,9}(?:\\?text\{)?\s?(?:and|or)?\s?\}?[\s$,;&]{0,9}")


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


def last_boxed(text: str) -> str | None:
    r"""What the last ``\boxed{...}`` holds; None where there is none."""
    boxes = find_boxes(text)
    return boxes[-1].content if boxes else None


def final_boxed(text: str) -> str | None:
    r"""The boxed answer of a response: its last box, joined by commas with the boxes listed right before it.

    A list of boxes is one answer with several parts, not several guesses of which one may be right.
    """
    boxes = find_boxes(text)
    if not boxes:
        return None
    first = len(boxes) - 1
    while first > 0 and _CONNECTOR.fullmatch(text[boxes[first - 1].end : boxes[first].start]):
        first -= 1
    return ", ".join(box.content for box in boxes[first:])


_REWRITES = [
    (re.compile(r"(?<!\\)\$"), ""),
    (re.compile(r"(?<=\d),\\!(?=\d{3})"), ""),  # 29,\!322 is a number, also within a fraction
    (re.compile(r"\s*\\?%"), ""),  # 50\%, 50% and 50 are one answer; math-verify does not read a percent sign in a box
    # Programs' numbers. math-verify reads 4e7 as 4 times Euler's number times 7, and 3./2 not at all.
    (re.compile(r"(?<![\w.\\])(\d+(?:\.\d+)?)[eE]([+-]?\d+)(?![\w.])"), r"\1 \\times 10^{\2}"),
    (re.compile(r"(?<=\d)\.(?![\d\\])"), ""),
    (re.compile(r"^\s*\\approx(?![a-zA-Z])"), ""),
    (re.compile(r"(?:\\[.,;]|[\s.,;:])+$"), ""),
]


def normalize(answer: str) -> str:
    """An answer, gold or given, as math-verify reads it rightly."""
    for pattern, replacement in _REWRITES:
        answer = pattern.sub(replacement, answer)
    return answer.strip()
