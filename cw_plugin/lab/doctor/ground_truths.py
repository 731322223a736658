"""The ground truths of a run's data files: rows that this package's reward cannot grade, which verl would drop."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from omegaconf import DictConfig, OmegaConf

from cw_plugin.lab.doctor.files import DataFile
from cw_plugin.lab.doctor.finding import Finding
from cw_plugin.lab.rewards import ground_truth_problem
from cw_plugin.lab.rewards.pool import shared_pool

REWARD = "reward.custom_reward_function"
OUR_REWARD = re.compile(r"(pkg://|.*/)cw_plugin[./]lab[./]rewards(/__init__\.py)?")
GRADED = 100  # different ground truths of a file that are graded; 7,000 would take a quarter of a minute


def uses_our_reward(config: DictConfig) -> bool:
    """Whether a run uses this package's reward; another one may grade what this one cannot."""
    return OUR_REWARD.fullmatch(str(OmegaConf.select(config, f"{REWARD}.path"))) is not None


def ungradable(file: DataFile, rows: Sequence[Mapping[str, Any]]) -> Iterator[Finding]:
    """At most one finding, for all rows of a file whose ground truths cannot be graded."""
    values = [(row.get("reward_model") or {}).get("ground_truth") for row in rows]
    problems = [ground_truth_problem(value, parse=False) for value in values]
    fatal = True
    if not any(problems) and not file.is_prepared:
        problems = _problems_when_graded(values)
        fatal = file.setting == "data.train_files"  # a benchmark may have what is only unreadable
    wrong = [row for row, problem in enumerate(problems) if problem]
    if wrong:
        problem = f"{file}: {len(wrong)} row(s) cannot be graded, first {wrong[:5]}: {problems[wrong[0]]}"
        yield Finding(problem, "correct or remove these rows", fatal)


def _problems_when_graded(values: Sequence[object]) -> list[str | None]:
    """The problem of each ground truth that is among the first to be graded; numbers need no grading.

    The grading processes are ended: this process goes on to train, and grades nothing more.
    """
    texts = [text for text in dict.fromkeys(values) if not re.fullmatch(r"-?\d+(\.\d+)?", str(text))]
    problem_of_text = {text: ground_truth_problem(text) for text in texts[:GRADED]}
    shared_pool().close()
    return [problem_of_text.get(value) for value in values]
