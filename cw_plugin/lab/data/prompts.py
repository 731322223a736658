r"""The prompts that can be put around a question."""

from cw_plugin.lab.arguments import expanded
from cw_plugin.lab.errors import DataError

# open-rs, recipes/grpo.yaml, system_prompt; the paper's Appendix C. open-rs does not format this string, so the model
# really reads both pairs of braces.
OPEN_RS = (
    "A conversation between User and Assistant. The user asks a question, and the Assistant solves it. The assistant "
    "first thinks about the reasoning process in the mind and then provides the user with the answer, and put your "
    r"final answer within \boxed{{}} . The reasoning process and answer are enclosed within <think> </think> and "
    "<answer> </answer> tags, respectively, i.e., <think> reasoning process here </think> <answer> answer here "
    "</answer>. Note that respond by English, NOT use other languages."
)


def select_prompt(name: str) -> list[dict[str, str]]:
    """The chat turns for ``--prompt``: ``open-rs``, ``none``, or the path of a text file.

    ``{question}`` is the place of the question. The file is the user turn if it contains ``{question}``, else the
    system turn. A file that cannot be read, or is not UTF-8, is a DataError.
    """
    question = {"role": "user", "content": "{question}"}
    if name == "none":
        return [question]
    try:
        text = OPEN_RS if name == "open-rs" else expanded(name).read_text(encoding="utf-8-sig").rstrip("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"--prompt {name}: {error}; give open-rs, none, or the path of a UTF-8 text file") from error
    if "{question}" in text:
        return [question | {"content": text}]
    return [{"role": "system", "content": text}, question]
