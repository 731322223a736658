"""The check of the data's rows: what verl cannot read, reads as an empty prompt, or drops as nothing can grade it."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow.parquet as pq
from omegaconf import DictConfig, OmegaConf

from cw_plugin.errors import first_line
from cw_plugin.lab.configs import listed
from cw_plugin.lab.data import CHECKED_BY
from cw_plugin.lab.doctor.files import READ_BY_VERL, DataFile, data_files
from cw_plugin.lab.doctor.finding import Finding
from cw_plugin.lab.doctor.steps import check_steps
from cw_plugin.lab.rewards import ground_truth_problem
from cw_plugin.lab.rewards.pool import shared_pool

_FORM = (
    'write each row as {"data_source": "my/data", "prompt": [{"role": "user", "content": "..."}], '
    '"reward_model": {"style": "rule", "ground_truth": "42"}}; data.prompt_key names the column of prompts'
)
_OUR_REWARD = re.compile(r"(pkg://|.*/)cw_plugin[./]lab[./]rewards(/__init__\.py)?")
_READ = 100  # different ground truths of a file that are read; 7,000 would take a quarter of a minute


def check_rows(config: DictConfig) -> Iterator[Finding]:
    """At most one finding for each file, or one for all; none if a class of the user's own reads the files."""
    if OmegaConf.select(config, "data.custom_cls.path"):
        return
    files = [file for file in data_files(config) if file.path.exists()]  # of the others, check_files says so
    findings = [finding for file in files for finding in _check_file(file, config)]
    yield from findings
    trained_on = [file for file in files if file.setting == "data.train_files"]
    if findings or len(trained_on) < len(listed(config.data.train_files)):
        return
    rows, most = sum(len(file.rows(["data_source"])) for file in trained_on), config.data.train_max_samples
    yield from check_steps(config, min(rows, most) if most > 0 else rows)


def _check_file(file: DataFile, config: DictConfig) -> Iterator[Finding]:
    if file.path.is_dir() or file.path.suffix not in READ_BY_VERL:
        problem = f"{file} is no file that verl reads ({', '.join(READ_BY_VERL)})"
        yield Finding(problem, "name one, or several as [a.parquet,b.parquet]")
        return
    prompt = config.data.prompt_key
    needed = ["data_source", prompt]
    # Another reward may grade what this package's cannot.
    uses_ours = _OUR_REWARD.fullmatch(str(OmegaConf.select(config, "reward.custom_reward_function.path")))
    if uses_ours or not OmegaConf.select(config, "reward.reward_model.enable"):
        needed.append("reward_model")
    try:
        rows = file.rows([*needed, "extra_info"])
    except (OSError, ValueError) as error:
        yield Finding(f"{file} cannot be read ({first_line(error)})", "write it again")
        return
    if not rows:
        yield Finding(f"{file} has no row", "write it again, or name another file")
    problems = [_problem_of(row, needed, prompt) for row in rows]
    wrong = [index for index, problem in enumerate(problems) if problem]
    if wrong:
        yield Finding(f"{file}: row {wrong[0]} {problems[wrong[0]]}", _FORM)
    elif uses_ours:
        yield from _ungradable(file, rows)


def _problem_of(row: dict[str, Any], needed: Sequence[str], prompt: str) -> str | None:
    """Why verl cannot use a row, or would not find the prompt in it; None if it can."""
    missing = [name for name in needed if row.get(name) is None]
    if missing:
        return f"has no {', '.join(missing)}"
    if not isinstance(row[prompt], list) or not row[prompt]:
        return f"has a prompt that is no list of messages: {row[prompt]!r:.50}"
    strange = [message for message in row[prompt] if not _is_message(message)]
    if strange:  # which a chat template would render as nothing
        return f"has a message without role and content: {strange[0]!r:.80}"
    if "reward_model" in needed and isinstance(row["reward_model"], dict) and "ground_truth" not in row["reward_model"]:
        return f"has no ground_truth in reward_model: {row['reward_model']!r:.50}"
    texts = [name for name in ("reward_model", "extra_info") if isinstance(row.get(name), str)]
    if texts:
        return f"has text in {texts[0]}, of which verl reads fields: {row[texts[0]]!r:.50}"
    return None


def _is_message(message: Any) -> bool:
    if not isinstance(message, dict) or message.get("role") is None:
        return False
    return message.get("content") is not None or "tool_calls" in message


def _ungradable(file: DataFile, rows: Sequence[Mapping[str, Any]]) -> Iterator[Finding]:
    """At most one finding, for all rows of a file whose ground truths this package's reward cannot grade."""
    values = [(row.get("reward_model") or {}).get("ground_truth") for row in rows]
    problems = [ground_truth_problem(value, parse=False) for value in values]
    metadata = pq.read_schema(file.path).metadata if file.path.suffix == ".parquet" else None
    fatal = True
    if not any(problems) and CHECKED_BY.encode() not in (metadata or {}):  # which cw-grpo prepare writes
        problems = _problems_when_read(values)
        fatal = file.setting == "data.train_files"  # a benchmark may have what is only unreadable
    wrong = [row for row, problem in enumerate(problems) if problem]
    if wrong:
        problem = f"{file}: {len(wrong)} row(s) cannot be graded, first {wrong[:5]}: {problems[wrong[0]]}"
        yield Finding(problem, "correct or remove these rows", fatal)


def _problems_when_read(values: Sequence[object]) -> list[str | None]:
    """The problem of each ground truth that is among the first to be read; numbers need no reading.

    The grading processes are ended: this process goes on to train, and reads nothing more.
    """
    texts = [text for text in dict.fromkeys(values) if not re.fullmatch(r"-?\d+(\.\d+)?", str(text))]
    problem_of_text = {text: ground_truth_problem(text) for text in texts[:_READ]}
    shared_pool().close()
    return [problem_of_text.get(value) for value in values]
