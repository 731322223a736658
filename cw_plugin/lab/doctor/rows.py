"""The check of the data's rows: what verl cannot read, reads as an empty prompt, or drops as nothing can grade it."""

from collections.abc import Iterator, Sequence
from typing import Any

from omegaconf import DictConfig, OmegaConf

from cw_plugin.errors import first_line
from cw_plugin.lab.configs import listed
from cw_plugin.lab.doctor.files import READ_BY_VERL, DataFile, data_files
from cw_plugin.lab.doctor.finding import Finding
from cw_plugin.lab.doctor.ground_truths import ungradable, uses_our_reward
from cw_plugin.lab.doctor.steps import check_steps

_FORM = (
    'write each row as {"data_source": "my/data", "prompt": [{"role": "user", "content": "..."}], '
    '"reward_model": {"style": "rule", "ground_truth": "42"}}; data.prompt_key names the column of prompts'
)


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
    if uses_our_reward(config) or not OmegaConf.select(config, "reward.reward_model.enable"):
        needed.append("reward_model")
    try:
        rows = file.rows([*needed, "extra_info"])
    except (OSError, ValueError) as error:
        yield Finding(f"{file} cannot be read ({first_line(error)})", "write it again")
        return
    problems = [_problem_of(row, needed, prompt) for row in rows]
    wrong = [index for index, problem in enumerate(problems) if problem]
    if wrong:
        yield Finding(f"{file}: row {wrong[0]} {problems[wrong[0]]}", _FORM)
    elif uses_our_reward(config):
        yield from ungradable(file, rows)


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
    texts = [name for name in ("reward_model", "extra_info") if isinstance(row.get(name), str)]
    if texts:
        return f"has text in {texts[0]}, of which verl reads fields: {row[texts[0]]!r:.50}"
    return None


def _is_message(message: Any) -> bool:
    if not isinstance(message, dict) or message.get("role") is None:
        return False
    return message.get("content") is not None or "tool_calls" in message
