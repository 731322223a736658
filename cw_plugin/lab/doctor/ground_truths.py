"""The ground truths of a run's data files: rows that this package's reward cannot grade, which verl would drop."""

import re
from collections.abc import Iterator, Sequence

import pyarrow as pa
from omegaconf import DictConfig, OmegaConf

from cw_plugin.lab.data import CHECKED_BY
from cw_plugin.lab.doctor.data_files import READ_BY_VERL, DataFile, data_files
from cw_plugin.lab.doctor.finding import Finding
from cw_plugin.lab.rewards import ground_truth_problem
from cw_plugin.lab.rewards.pool import shared_pool

REWARD = "reward.custom_reward_function"
OUR_REWARD = re.compile(r"(pkg://|.*/)cw_plugin[./]lab[./]rewards(/__init__\.py)?")
GRADED = 100  # different ground truths of a file that are graded; 7,000 would take a quarter of a minute


def check_ground_truths(config: DictConfig) -> Iterator[Finding]:
    """Rows that this package's reward cannot grade; only if the run uses it."""
    if not OUR_REWARD.fullmatch(str(OmegaConf.select(config, f"{REWARD}.path"))):
        return
    for file in data_files(config, "train_files", "val_files"):
        if file.path.suffix not in READ_BY_VERL:
            continue
        try:
            table = file.read(["reward_model"])
        except (OSError, ValueError):
            continue  # check_files reports it
        if table.num_columns:  # else check_files reports it
            yield from _findings_in(file, table)


def _findings_in(file: DataFile, table: pa.Table) -> Iterator[Finding]:
    """At most one finding, from the column ``reward_model``."""
    column = table[0]
    if not pa.types.is_struct(column.type):
        problem = f"{file.key}: the column reward_model of {file.path} holds {column.type}, not fields"
        yield Finding(problem, 'write each cell as {"style": "rule", "ground_truth": "42"}')
        return
    values = [cell.get("ground_truth") if isinstance(cell, dict) else None for cell in column.to_pylist()]
    problems = [ground_truth_problem(value, parse=False) for value in values]
    fatal = True
    if not any(problems) and not _is_graded_already(table):
        problems = _problems_when_graded(values)
        fatal = file.key == "data.train_files"  # a benchmark may have what is only unreadable
    rows = [row for row, problem in enumerate(problems) if problem]
    if rows:
        reason = problems[rows[0]]
        problem = f"{file}: {len(rows)} row(s) cannot be graded, first {rows[:5]}: {reason}"
        yield Finding(problem, "correct or remove these rows", fatal)


def _is_graded_already(table: pa.Table) -> bool:
    """Whether ``cw-grpo prepare`` wrote the file, which grades every ground truth."""
    return CHECKED_BY.encode() in (table.schema.metadata or {})


def _problems_when_graded(values: Sequence[object]) -> list[str | None]:
    """The problem of each ground truth that is among the first to be graded; numbers need no grading.

    The grading processes are ended: this process goes on to train, and grades nothing more.
    """
    texts = [text for text in dict.fromkeys(values) if not re.fullmatch(r"-?\d+(\.\d+)?", str(text))]
    problem_of_text = {text: ground_truth_problem(text) for text in texts[:GRADED]}
    shared_pool().close()
    return [problem_of_text.get(value) for value in values]
