"""Checks of the model and the data files."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

from cw_plugin.doctor.finding import Finding
from cw_plugin.errors import DataError, first_line

SHOWN = 5  # rows
PARSED = 100  # different ground truths of a file that are parsed; 7,000 would take a quarter of a minute
NUMBER = re.compile(r"-?\d+(\.\d+)?")
OURS = re.compile(r"(pkg://|.*/)cw_plugin[./]rewards(/__init__\.py)?")


def _files(config: Any) -> Iterator[tuple[str, Path]]:
    """The local data files, each with the setting that names it. Others (``hdfs://``) are verl's to copy."""
    for key in ("train_files", "val_files"):
        value = config.data[key]
        for path in [value] if isinstance(value, str) else list(value or []):
            if "://" not in path:
                yield f"data.{key}", Path(path).expanduser()


def model(config: Any) -> Iterator[Finding]:
    """A model's folder that does not exist. Names on the hub are looked up by :func:`lengths`, and by verl."""
    given = config.actor_rollout_ref.model.path
    path = Path(given).expanduser()
    like_a_folder = "/" in given and (given[0] in "/.~" or given.count("/") > 1 or path.parent.is_dir())
    if (like_a_folder or path.exists()) and "://" not in given and not (path / "config.json").is_file():
        what = "has no config.json" if path.exists() else "does not exist"
        fix = "actor_rollout_ref.model.path=<a model's folder, or its name on the Hugging Face hub>"
        yield Finding(f"actor_rollout_ref.model.path={given} {what}", fix)


def files(config: Any) -> Iterator[Finding]:
    """Whether the files exist, and have rows and the columns that verl reads."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    prompt = config.data.prompt_key
    for key, path in _files(config):
        if not path.exists():
            yield Finding(f"{key}: {path} does not exist", f"cw-grpo prepare all, or {key}=<an existing file>")
        if not path.is_file() or path.suffix != ".parquet":
            continue  # JSON lines have no schema to look at
        try:
            file = pq.ParquetFile(path)
        except (OSError, pa.ArrowException) as error:
            yield Finding(f"{key}: {path} is no parquet file ({first_line(error)})", "write it again")
            continue
        schema = file.schema_arrow
        missing = [name for name in ("data_source", prompt, "reward_model") if name not in schema.names]
        if missing:
            what = f"lacks the column(s) {', '.join(missing)}; it has {', '.join(schema.names)}"
            yield Finding(f"{key}: {path} {what}", "rename the columns; data.prompt_key names the prompt's")
        elif not file.metadata.num_rows:
            yield Finding(f"{key}: {path} has no rows", "write it again")
        elif not pa.types.is_nested(schema.field(prompt).type):
            what = f"{key}: the column {prompt} of {path} holds {schema.field(prompt).type}, not lists of messages"
            yield Finding(what, 'write each prompt as [{"role": "user", "content": "..."}]')


def ground_truths(config: Any) -> Iterator[Finding]:
    """Rows that this package's reward cannot grade; only if the run uses it."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    reward = ((config.get("reward") or {}).get("custom_reward_function") or {}).get("path")
    for key, path in _files(config) if OURS.fullmatch(str(reward)) else []:
        try:
            table = pq.ParquetFile(path).read(columns=["reward_model"])  # read_table would import pandas
        except (OSError, pa.ArrowException):
            continue  # files() reports it; JSON lines are not read
        rows = table[0].to_pylist() if table.num_columns else []
        values = [row.get("ground_truth") if isinstance(row, dict) else None for row in rows]
        why, fatal = "verl leaves the responses to such a row out of its batches without a word", True
        wrong = {row: value for row, value in enumerate(values) if not _is_answer(value)}
        if not wrong and b"cw_plugin.version" not in (table.schema.metadata or {}):  # cw-grpo prepare has listed them
            why, fatal = "no response to such a row can be right", key == "data.train_files"
            bad = _unparsed([text for text in dict.fromkeys(values) if isinstance(text, str)])
            wrong = {row: value for row, value in enumerate(values) if value in bad}
        if wrong:
            shown = [f"{row} ({value!r:.40})" for row, value in list(wrong.items())[:SHOWN]]
            more = [f"and {len(wrong) - SHOWN} more"] if len(wrong) > SHOWN else []
            where = f"{key}: {path}, row {', '.join(shown + more)}"
            yield Finding(f"{where}: ground_truth cannot be graded; {why}", "correct or remove these rows", fatal)


def _is_answer(value: Any) -> bool:
    """Whether a ground truth is text, or a finite number."""
    if isinstance(value, str):
        return bool(value.strip())
    return isinstance(value, (int, float, Decimal)) and not isinstance(value, bool) and math.isfinite(value)


def _unparsed(texts: list[str]) -> set[str]:
    """Of the first texts that are more than a number, those that are not graded as right against themselves."""
    expressions = [text for text in texts if not NUMBER.fullmatch(text)][:PARSED]
    if not expressions:
        return set()
    from cw_plugin.data.checks import ungradable
    from cw_plugin.rewards.pool import shared_pool

    try:
        return {expressions[failure.row] for failure in ungradable(expressions)}
    finally:
        shared_pool().close()


def require_ground_truths(config: Any) -> None:
    """For the hooks in verl: refuse a run that would lose rows.

    Raises:
        DataError: with the file and the rows.
    """
    for finding in ground_truths(config):
        if finding.fatal:
            raise DataError(f"{finding.what}; {finding.fix}")


def lengths(config: Any) -> Iterator[Finding]:
    """Responses that vLLM would cut: the model's positions and max_model_len must hold prompt and response."""
    from transformers import AutoConfig

    data, model, limit = config.data, config.actor_rollout_ref.model, config.actor_rollout_ref.rollout.max_model_len
    longest = data.max_prompt_length + data.max_response_length
    try:
        text = AutoConfig.from_pretrained(model.path, trust_remote_code=model.trust_remote_code).get_text_config()
    except (OSError, ValueError) as error:
        fix = "actor_rollout_ref.model.path=<a folder, or a name on the hub>, or check the network"
        yield Finding(f"the model {model.path} cannot be read ({first_line(error)})", fix)
        return
    positions = getattr(text, "max_position_embeddings", longest)
    prompt = min(data.max_prompt_length, positions // 2)
    asked = f"prompt and response may have {longest} tokens together"
    if positions < longest:
        fix = f"data.max_prompt_length={prompt} data.max_response_length={positions - prompt}"
        yield Finding(f"{asked}, and the model has {positions} positions: vLLM cuts longer responses", fix)
    if limit is not None and limit < min(longest, positions):
        fix = f"actor_rollout_ref.rollout.max_model_len={min(longest, positions)}"
        yield Finding(f"{asked}, and rollout.max_model_len={limit}: vLLM cuts longer responses", fix)
