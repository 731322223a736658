r"""The reward of the paper as reward functions of TRL: 1 for a right answer, 1 for well-formed think tags.

Usage::

    trainer = CWGRPOTrainer(model, reward_funcs=trl_rewards(model), ...)

There are two functions, because TRL logs each one separately and weights them by ``GRPOConfig.reward_weights``. They
grade as :func:`cw_plugin.lab.rewards.compute_score` does, in the same processes.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from cw_plugin.errors import OptionsError
from cw_plugin.lab.errors import DataError
from cw_plugin.lab.rewards import compute_score, ground_truth_problem
from cw_plugin.lab.rewards.boxed import final_boxed
from cw_plugin.lab.rewards.think import CLOSE, OPEN, answer_section, matched, template_opens_think

Completion = str | list[dict[str, Any]]  # conversational data sets have messages
RewardFunction = Callable[..., list[float]]

THREADS = 16  # they wait for the grading processes, of which there are at most four


def trl_rewards(model_path: str | None = None, opens_think: bool | None = None, **options: Any) -> list[RewardFunction]:
    """``[accuracy_reward, format_reward]``, for ``reward_funcs``.

    TRL calls them with the batch's ``completions`` and the dataset's columns. The right answers come from the column
    ``ground_truth`` (the final answer alone), else ``reward_model`` (as ``cw-grpo prepare`` writes it), else
    ``solution`` (the answer itself, a list of it, or a text with the answer in tags or in its last box).
    ``data_source`` is optional.

    Args:
        model_path, opens_think, options: as of :func:`~cw_plugin.lab.rewards.compute_score`; ``extraction`` and
            ``time_limit`` are options.

    Raises:
        OptionsError: a keyword is unknown. ``accuracy_reward`` raises it for a dataset without right answers, and a
            DataError for a row whose right answer is missing or cannot be read.
    """
    if unknown := sorted(set(options) - {"extraction", "time_limit"}):
        raise OptionsError(f"{unknown[0]} is no option of trl_rewards; use extraction or time_limit")
    if opens_think is None and model_path is not None:
        opens_think = template_opens_think(model_path)

    def accuracy_reward(completions: Sequence[Completion], **columns: Any) -> list[float]:
        """1.0 for each completion whose answer is right, else 0.0."""

        def grade(source: str, completion: Completion, ground_truth: str) -> float:
            text = response_text(completion, opens_think)
            return float(compute_score(source, text, ground_truth, opens_think=opens_think, **options)["acc"])

        sources = columns.get("data_source") or [""] * len(completions)
        with ThreadPoolExecutor(THREADS) as threads:
            return list(threads.map(grade, sources, completions, _ground_truths(columns)))

    def format_reward(completions: Sequence[Completion], **_: Any) -> list[float]:
        """1.0 for each completion with well-formed think tags, else 0.0."""
        return [matched(response_text(completion, opens_think), opens_think) for completion in completions]

    return [accuracy_reward, format_reward]


def _ground_truths(columns: dict[str, Any]) -> list[Any]:
    """The right answer of each row, each of which can be graded."""
    if "ground_truth" in columns:
        truths = list(columns["ground_truth"])
    elif "reward_model" in columns:
        truths = [row["ground_truth"] for row in columns["reward_model"]]
    elif "solution" in columns:
        truths = [_in_solution(value) for value in columns["solution"]]
    else:
        raise OptionsError("the data set has no column ground_truth, reward_model or solution; add one of them")
    for row, truth in enumerate(truths):
        if problem := ground_truth_problem(truth):
            raise DataError(f"row {row} of the batch: {problem} Correct or remove the row.")
    return truths


def _in_solution(value: Any) -> Any:
    """The answer in a worked solution, in its ``<answer>`` tags or its last box; what is no text is the answer."""
    if isinstance(value, (list, tuple)) and len(value) == 1:
        return _in_solution(value[0])
    if not isinstance(value, str):
        return value
    section = answer_section(value)
    return final_boxed(section) or section


def response_text(completion: Completion, opens_think: bool | None = None) -> str:
    """The text that the model wrote, in all of its messages if a completion has several (tool calls).

    If TRL's response parser moved the think section out of a message, it is put back, without the tag that the prompt
    has if it ``opens_think``. The parser also takes a section that never ends; one is closed if something follows it.
    """
    if isinstance(completion, str):
        return completion
    said = ""
    for message in completion:
        if message.get("role", "assistant") == "assistant":
            content = message.get("content") or ""
            if thought := message.get("reasoning_content") or message.get("thinking"):  # the parser's name, by model
                ended = f"\n{CLOSE}\n" if content or message.get("tool_calls") else ""
                said += f"{'' if opens_think else OPEN}\n{thought}{ended}"
            said += content
    return said
