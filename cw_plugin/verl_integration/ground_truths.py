"""The ground truths of a run's data files: rows that this package's reward cannot grade, which verl would drop."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from omegaconf import OmegaConf

from cw_plugin.errors import DataError
from cw_plugin.rewards import ground_truth_problem
from cw_plugin.rewards.pool import shared_pool
from cw_plugin.verl_integration.finding import Finding

REWARD = "reward.custom_reward_function"
OUR_REWARD = re.compile(r"(pkg://|.*/)cw_plugin[./]rewards(/__init__\.py)?")
GRADED = 100  # different ground truths of a file that are graded; 7,000 would take a quarter of a minute


def data_files(config: Any) -> Iterator[tuple[str, Path]]:
    """The local data files, each with the setting that names it. Others (``hdfs://``) are verl's to copy."""
    for key in ("train_files", "val_files"):
        value = config.data[key]
        for path in [value] if isinstance(value, str) else list(value or []):
            if "://" not in path:
                yield f"data.{key}", Path(path).expanduser()


def ground_truths(config: Any) -> Iterator[Finding]:
    """Rows that this package's reward cannot grade; only if the run uses it."""
    if not OUR_REWARD.fullmatch(str(OmegaConf.select(config, f"{REWARD}.path"))):
        return
    for key, path in data_files(config):
        try:
            table = pq.ParquetFile(path).read(columns=["reward_model"])  # read_table would import pandas
        except (OSError, pa.ArrowException):
            continue  # files() reports it; JSON lines are not read
        if table.num_columns and not pa.types.is_struct(table[0].type):
            what = f"{key}: the column reward_model of {path} holds {table[0].type}, not fields"
            yield Finding(what, 'write each cell as {"style": "rule", "ground_truth": "42"}')
            continue
        cells = table[0].to_pylist() if table.num_columns else []
        values = [cell.get("ground_truth") if isinstance(cell, dict) else None for cell in cells]
        problems = [ground_truth_problem(value, parse=False) for value in values]
        fatal = any(problems) or key == "data.train_files"
        if not any(problems) and b"cw_plugin.version" not in (table.schema.metadata or {}):  # else prepare graded them
            texts = [text for text in dict.fromkeys(values) if not re.fullmatch(r"-?\d+(\.\d+)?", str(text))]
            unreadable = {text: ground_truth_problem(text) for text in texts[:GRADED]}
            shared_pool().close()
            problems = [unreadable.get(value) for value in values]
        if rows := [row for row, why in enumerate(problems) if why]:
            what = f"{key}: {path}: {len(rows)} row(s) cannot be graded, first {rows[:5]}: {problems[rows[0]]}"
            yield Finding(what, "correct or remove these rows", fatal)


def require_ground_truths(config: Any) -> None:
    """For the hooks in verl: raise DataError, with the file and the rows, if a run would lose rows."""
    for finding in ground_truths(config):
        if finding.fatal:
            raise DataError(f"{finding.what}; {finding.fix}")
