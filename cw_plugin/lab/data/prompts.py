r"""The prompts that can be put around a question."""

from typing import NamedTuple

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


class Prompt(NamedTuple):
    """A system turn (None: no system turn), and a user turn with ``{question}`` as the place of the question."""

    system: str | None = None
    user: str = "{question}"

    def messages(self, question: str) -> list[dict[str, str]]:
        """The chat turns that ask ``question``."""
        user = {"role": "user", "content": self.user.replace("{question}", question)}
        if self.system is None:
            return [user]
        return [{"role": "system", "content": self.system}, user]


def select_prompt(name: str) -> Prompt:
    """The prompt for ``--prompt``: ``open-rs``, ``none``, or the path of a text file.

    The file is the user turn if it contains ``{question}``, else the system turn. A file that cannot be read, or is not
    UTF-8, is a DataError.
    """
    if name == "open-rs":
        return Prompt(system=OPEN_RS)
    if name == "none":
        return Prompt()
    try:
        text = expanded(name).read_text(encoding="utf-8-sig").rstrip("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"--prompt {name}: {error}; give open-rs, none, or the path of a UTF-8 text file") from error
    return Prompt(user=text) if "{question}" in text else Prompt(system=text)
