"""The think section of a response: whether it is well formed, and the text after it."""

import functools

OPEN, CLOSE = "<think>", "</think>"


def answer_section(response: str) -> str:
    """The text after the last ``</think>``, all of it without one: what is boxed while thinking is a draft."""
    return response.rpartition(CLOSE)[2]


def matched(response: str, opens_think: bool | None) -> float:
    """1.0 if there is one think section, it stands at the start, and it is opened and closed exactly once; by the
    prompt, if that ``opens_think``. None accepts either way."""
    opened_here = response.lstrip().startswith(OPEN)
    as_expected = opens_think is None or opened_here != opens_think
    return float(as_expected and response.count(OPEN) == opened_here and response.count(CLOSE) == 1)


@functools.cache
def template_opens_think(model_path: str) -> bool:
    """Whether the chat template of the model at ``model_path`` (a folder or a hub name) already opens ``<think>``."""
    from transformers import AutoTokenizer

    messages = [{"role": "user", "content": "1+1?"}]
    tokenizer = AutoTokenizer.from_pretrained(model_path)
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    return str(prompt).rstrip().endswith(OPEN)
