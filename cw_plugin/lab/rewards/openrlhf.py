r"""The reward of the paper as a reward file of OpenRLHF: 1 for a right answer, 1 for well-formed think tags.

Usage::

    --reward.remote_url "$(python -c 'from cw_plugin.lab.rewards import openrlhf; print(openrlhf.__file__)')" \
    --data.label_key reward_model       # as cw-grpo prepare writes it; or a column with the final answer alone

For other options, write a file of two lines::

    from cw_plugin.lab.rewards.openrlhf import openrlhf_reward
    reward_func = openrlhf_reward(format_weight=0.5)
"""

import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cw_plugin.lab.errors import DataError
from cw_plugin.lab.rewards import compute_score
from cw_plugin.lab.rewards.think import OPEN


def openrlhf_reward(**options: Any) -> Callable[..., dict[str, Any]]:
    """A ``reward_func`` with options of ``cw_plugin.lab.rewards.compute_score``, whose ``extraction`` is "training".

    OpenRLHF calls it with lists of one query (prompt and response), prompt and label, the final answer or a mapping
    whose ``ground_truth`` it is. By ``scores``, 1.0 for a right answer, OpenRLHF filters prompts. A query that does
    not begin with its prompt is a DataError. OpenRLHF logs it, leaves the response without a reward, and stops on that.
    """

    def reward_func(queries: Sequence[str], prompts: Sequence[str], labels: Sequence[Any]) -> dict[str, Any]:
        (query,), (prompt,), (label,) = queries, prompts, labels
        truth = label["ground_truth"] if isinstance(label, Mapping) else label
        given = {"extraction": "training", "opens_think": prompt.rstrip().endswith(OPEN), **options}
        result = compute_score("", _response(query, prompt), truth, **given)
        logs = {name: result[name] for name in ("acc", "format")}
        return {"rewards": result["score"], "scores": result["acc"], "extra_logs": logs}

    return reward_func


def _response(query: str, prompt: str) -> str:
    """What follows the prompt in a query, which OpenRLHF has made of token ids.

    So it has the spaces that the tokenizer puts between special tokens (Llama 2's, Mistral's), and the Unicode form to
    which it brings a text (NFC, Qwen's).
    """
    if query.startswith(prompt):
        return query[len(prompt) :]
    query, prompt = unicodedata.normalize("NFC", query), unicodedata.normalize("NFC", prompt)
    characters = "".join(prompt.split())
    found = re.match(r"\s*" + r"\s*".join(map(re.escape, characters)), query)
    if found is None:
        raise DataError(
            f"the text of a response does not begin with its prompt, {prompt!r}; raise --data.max_len if OpenRLHF has "
            "cut the prompt, else use a tokenizer that gives back the text of a prompt"
        )
    return query[found.end() :]


reward_func = openrlhf_reward()
