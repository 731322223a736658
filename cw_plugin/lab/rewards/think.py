"""The think section of a response: whether it is well formed, and the text after it."""

import functools
import re

OPEN, CLOSE = "<think>", "</think>"

_SENTENCE = re.compile(r"\\boxed|\b(?:is|are|was|answer|so|thus|hence|therefore)\b", re.IGNORECASE)


def answer_section(response: str, opens_think: bool | None = None) -> str:
    r"""The text after the last ``</think>``, or before the only ``<think>``: what is boxed while thinking is a draft.

    Without either, it is all of the response; none of it if the prompt ``opens_think``, since then all is thinking.
    Of a text with ``<answer>`` tags, it is what the last ones hold; that is the answer, as if it stood in a box, unless
    it is a sentence or has a box itself.
    """
    _, ended, after = response.rpartition(CLOSE)
    text = "" if opens_think and not ended else after.partition(OPEN)[0]
    _, opened, rest = text.rpartition("<answer>")
    answer, closed, _ = rest.partition("</answer>")
    if not opened or not closed or not answer.strip():
        return text
    return answer if _SENTENCE.search(answer) else rf"\boxed{{{answer.strip()}}}"


def matched(response: str, opens_think: bool | None) -> float:
    """1.0 if there is one think section, at the start, which is opened and closed exactly once; else 0.0.

    Args:
        opens_think: whether the prompt opens it, so that the response must not. With None, either may.
    """
    opens_itself = response.lstrip().startswith(OPEN)
    if opens_itself is opens_think:  # it is opened twice, or never
        return 0.0
    openings = 1 if opens_itself else 0
    return 1.0 if response.count(OPEN) == openings and response.count(CLOSE) == 1 else 0.0


@functools.cache
def template_opens_think(model_path: str) -> bool:
    """Whether the chat template of the model at ``model_path`` (a folder or a hub name) already opens ``<think>``."""
    from transformers import AutoTokenizer

    messages = [{"role": "user", "content": "1+1?"}]
    tokenizer = AutoTokenizer.from_pretrained(model_path)
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    return str(prompt).rstrip().endswith(OPEN)
