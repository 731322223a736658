r"""The boxed answer of a text."""

import re

_TOKENS = re.compile(r"(?P<open>(?P<box>\\+(?:boxed|fbox)\s*(?:\{|$))|\{)|\\[\\{}]|(?P<close>\})")
_WITHOUT_BRACES = re.compile(r"\\+(?:boxed|fbox)\s*(-?\d+(?:[.,]\d+)*|[A-Z])(?=\.?\s*(?:\$|\\[)\]]|\}|$))")
NEAR, FAR = 10, 70  # characters between two boxes, as in math-verify


def final_boxed(text: str) -> str | None:
    r"""The content of the last ``\boxed{...}``, and of the boxes listed right before it, joined by commas.

    Without a box, it is None; "" if the last one is never closed, since the answers before it were given up. As in
    math-verify, two boxes are a list if next to nothing stands between them (here, no full stop either), or little with
    a comma, a semicolon, "and" or "or". A box that is repeated counts once. Of boxes in boxes, the innermost counts.
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
                is_near = len(between) < NEAR and "." not in between
                is_list = is_near or (len(between) < FAR and re.search(r"[,;]|\b(?:and|or)\b", between))
                contents = [*(contents if is_list else []), text[opening.end() : token.start()].strip()]
                end = token.end()
    if any(token["box"] and token.start() >= end for token in opened):
        return ""
    return ", ".join(dict.fromkeys(contents)) if contents else None
