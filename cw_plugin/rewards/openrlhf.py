r"""The reward of the paper as a reward file of OpenRLHF: 1 for a right answer, 1 for well-formed think tags.

Usage::

    --reward.remote_url "$(python -c 'from cw_plugin.rewards import openrlhf; print(openrlhf.__file__)')" \
    --data.label_key reward_model       # as cw-grpo prepare writes it; or a column with the final answer alone

For other options, write a file of two lines::

    from cw_plugin.rewards.openrlhf import openrlhf_reward
    reward_func = openrlhf_reward(format_weight=0.5)
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cw_plugin.errors import DataError
from cw_plugin.rewards import compute_score
from cw_plugin.rewards.think import OPEN


def openrlhf_reward(**options: Any) -> Callable[..., dict[str, Any]]:
    """A ``reward_func`` with options of :func:`cw_plugin.rewards.compute_score`, whose ``extraction`` is "training".

    OpenRLHF calls it with lists of one query (prompt and response), prompt and label, the final answer or a mapping
    whose ``ground_truth`` it is. By ``scores``, 1.0 for a right answer, OpenRLHF filters prompts. A query that does
    not begin with its prompt is a DataError.
    """

    def reward_func(queries: Sequence[str], prompts: Sequence[str], labels: Sequence[Any]) -> dict[str, Any]:
        (query,), (prompt,), (label,) = queries, prompts, labels
        if not query.startswith(prompt):
            raise DataError(f"the text of a response does not begin with its prompt, {prompt!r}; raise --data.max_len")
        truth = label["ground_truth"] if isinstance(label, Mapping) else label
        given = {"extraction": "training", "opens_think": prompt.rstrip().endswith(OPEN), **options}
        result = compute_score("", query[len(prompt) :], truth, **given)
        logs = {name: result[name] for name in ("acc", "format")}
        return {"rewards": result["score"], "scores": result["acc"], "extra_logs": logs}

    return reward_func


reward_func = openrlhf_reward()
