"""The checks of files: the model's folder and positions, and what verl reads of the data."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from omegaconf import DictConfig, OmegaConf

from cw_plugin.errors import first_line
from cw_plugin.files import is_remote
from cw_plugin.lab.doctor.data_files import READ_BY_VERL, DataFile, data_files, named_files
from cw_plugin.lab.doctor.finding import Finding


def _is_missing_folder(model: str) -> bool:
    """False for a name on the hub, which :func:`check_lengths` looks up."""
    path = Path(model).expanduser()
    like_a_folder = model[0] in "/.~" or model.count("/") > 1 or ("/" in model and path.parent.is_dir())
    return like_a_folder and not is_remote(model) and not path.exists()


def check_files(config: DictConfig) -> Iterator[Finding]:
    """Whether the model's folder and the data files exist, and verl can train on the latter."""
    model = config.actor_rollout_ref.model.path
    if _is_missing_folder(model):
        yield Finding(f"actor_rollout_ref.model.path={model} does not exist", "give a folder, or a name on the hub")
    for file in data_files(config, "train_files", "val_files"):
        if not file.path.exists():
            yield Finding(f"{file} does not exist", f"cw-grpo prepare all, or {file.key}=<an existing file>")
    if not OmegaConf.select(config, "data.custom_cls.path"):  # else a class of the user's own reads them
        for setting in ("train_files", "val_files"):
            yield from _check_data(config, setting)


def _check_data(config: DictConfig, setting: str) -> Iterator[Finding]:
    files = [file for file in data_files(config, setting) if file.path.exists()]
    schemas, rows = [], 0
    for file in files:
        if file.path.is_dir() or file.path.suffix not in READ_BY_VERL:
            kinds = ", ".join(READ_BY_VERL)
            yield Finding(
                f"{file} is no file that verl reads ({kinds})", "name one, or several as [a.parquet,b.parquet]"
            )
            return
        try:
            schemas.append(file.schema())
            prompts = file.read([config.data.prompt_key])
        except (OSError, ValueError) as error:
            yield Finding(f"{file} cannot be read ({first_line(error)})", "write it again")
            return
        rows += prompts.num_rows
        yield from _check_columns(file, schemas[-1], config)
        yield from _check_messages(file, prompts)
    yield from _check_together(setting, schemas)
    batch, is_whole = config.data.train_batch_size, len(files) == len(named_files(config, setting))
    if setting == "train_files" and is_whole and rows < batch:
        problem = f"data.train_files has {rows} row(s), fewer than data.train_batch_size={batch}: verl trains no step"
        yield Finding(problem, "more rows, or a smaller batch")


def _check_columns(file: DataFile, schema: pa.Schema, config: DictConfig) -> Iterator[Finding]:
    """Columns that verl lacks, or cannot use in their type."""
    prompt = config.data.prompt_key
    needed = ["data_source", prompt]
    if not _is_scored_by_a_model(config):
        needed.append("reward_model")
    missing = [name for name in needed if name not in schema.names]
    if missing:
        problem = f"{file} lacks the column(s) {', '.join(missing)}; it has {', '.join(schema.names)}"
        yield Finding(problem, "rename the columns; data.prompt_key names the prompt's")
        return
    kind = schema.field(prompt).type
    if not pa.types.is_nested(kind):  # verl may train on such prompts, as empty messages
        problem = f"{file.key}: the column {prompt} of {file.path} holds {kind}, not lists of messages"
        yield Finding(problem, 'write each prompt as [{"role": "user", "content": "..."}]')
    extra = schema.field("extra_info").type if "extra_info" in schema.names else pa.null()
    if not pa.types.is_struct(extra) and not pa.types.is_null(extra):
        problem = f"{file.key}: the column extra_info of {file.path} holds {extra}, and verl reads fields of it"
        yield Finding(problem, 'write each cell as {"index": 0}, or leave the column out')


def _is_scored_by_a_model(config: DictConfig) -> bool:
    """Whether a reward model alone scores the responses, so that a row needs no ground truth."""
    function = OmegaConf.select(config, "reward.custom_reward_function.path")
    return bool(OmegaConf.select(config, "reward.reward_model.enable")) and not function


def _check_messages(file: DataFile, prompts: pa.Table) -> Iterator[Finding]:
    """The first row whose messages a chat template would render as nothing, because they have other keys."""
    if prompts.num_columns == 0 or not pa.types.is_nested(prompts[0].type):
        return  # _check_columns says so
    for row, messages in enumerate(prompts[0].to_pylist()):
        strange = [message for message in messages or [] if not _is_message(message)]
        if strange:
            keys = [key for key, value in strange[0].items() if value is not None]
            problem = f"{file}: row {row} has a message with the keys {', '.join(keys)}; verl reads role and content"
            yield Finding(problem, 'write each message as {"role": "user", "content": "..."}')
            return


def _is_message(message: Any) -> bool:
    if not isinstance(message, dict):
        return True  # what else a prompt may be is not known here
    return message.get("role") is not None and (message.get("content") is not None or "tool_calls" in message)


def _check_together(setting: str, schemas: Sequence[pa.Schema]) -> Iterator[Finding]:
    """Whether the files of a setting fit together, as verl joins them."""
    if len(schemas) < 2:
        return
    from datasets import Dataset, concatenate_datasets

    one_row = [pa.table([pa.nulls(1, kind) for kind in schema.types], schema=schema) for schema in schemas]
    try:
        concatenate_datasets([Dataset(table) for table in one_row])
    except ValueError as error:
        yield Finding(f"data.{setting}: verl cannot join these files: {first_line(error)}", "give the column one type")


def check_lengths(config: DictConfig) -> Iterator[Finding]:
    """Responses that vLLM would cut: the model's positions and max_model_len must hold prompt and response."""
    from transformers import AutoConfig

    model, limit = config.actor_rollout_ref.model, config.actor_rollout_ref.rollout.max_model_len
    if _is_missing_folder(model.path) or is_remote(model.path):
        return  # check_files says so; or verl has yet to copy it
    longest = config.data.max_prompt_length + config.data.max_response_length
    shape = AutoConfig.from_pretrained(model.path, trust_remote_code=model.trust_remote_code).get_text_config()
    room = min(getattr(shape, "max_position_embeddings", longest), limit or longest)
    if longest > room:
        problem = f"data.max_prompt_length + data.max_response_length = {longest}: vLLM cuts what is longer than {room}"
        yield Finding(problem, f"a sum of {room}; or a larger rollout.max_model_len, if the model has more positions")
