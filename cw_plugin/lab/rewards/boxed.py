r"""The boxed answer of a text."""

import re

_TOKENS = re.compile(r"(?P<open>(?P<box>\\+(?:boxed|fbox)\s*(?:\{|$))|\{)|\\[\\{}]|(?P<close>\})")
_WITHOUT_BRACES = re.compile(r"\\+(?:boxed|fbox)\s*(-?\d+(?:[.,]\d+)*|[A-Z])(?=\.?\s*(?:\$|\\[)\]]|\}|$))")
NEAR, FAR = 10, 70  # characters between two boxes, as in math-verify
_CORRECTS = re.compile(r"[.?!](?!\w)|\b(?:rather|wait|wrong)\b")  # the box before it, which was a draft


def final_boxed(text: str) -> str | None:
    r"""The content of the last ``\boxed{...}``, and of the boxes listed right before it, joined by commas.

    Without a box, it is None; "" if the last one is never closed, since the answers before it were given up. Two boxes
    are a list if next to nothing stands between them, or little with a comma, a semicolon, "and" or "or"; but not if a
    sentence ends there, or a word such as "rather" corrects the first one. Boxes that are all the same count once. Of
    boxes in boxes, the innermost counts.
    """
    text = _WITHOUT_BRACES.sub(r"\\boxed{\1}", text)
    contents: list[str] = []
    end = 0  # of the last box
    opened: list[re.Match[str]] = []
    for token in _TOKENS.finditer(text):
        if token["open"]:
            opened.append(token)
        elif token["close"] and opened:
            opening = opened.pop()
            if opening["box"] and opening.start() >= end:
                between = re.sub(r"(?:\\q?quad(?![a-zA-Z])|\s)+", " ", text[end : opening.start()])
                joins = len(between) < NEAR or (len(between) < FAR and re.search(r"[,;]|\b(?:and|or)\b", between))
                is_list = joins and not _CORRECTS.search(between)
                contents = [*(contents if is_list else []), text[opening.end() : token.start()].strip()]
                end = token.end()
    if any(token["box"] and token.start() >= end for token in opened):
        return ""
    if len(set(contents)) == 1:
        return contents[0]
    return ", ".join(contents) if contents else None
