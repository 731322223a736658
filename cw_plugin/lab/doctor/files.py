"""The checks of files: the model's folder and positions, and the columns of the data."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from omegaconf import DictConfig, OmegaConf

from cw_plugin.errors import first_line
from cw_plugin.files import is_remote
from cw_plugin.lab.doctor.finding import Finding
from cw_plugin.lab.doctor.ground_truths import DataFile, data_files


def _is_missing_folder(model: str) -> bool:
    """False for a name on the hub, which :func:`check_lengths` looks up."""
    path = Path(model).expanduser()
    like_a_folder = model[0] in "/.~" or model.count("/") > 1 or ("/" in model and path.parent.is_dir())
    return like_a_folder and not is_remote(model) and not path.exists()


def check_files(config: DictConfig) -> Iterator[Finding]:
    """Whether the model's folder and the data files exist, and the latter have the columns that verl reads."""
    model = config.actor_rollout_ref.model.path
    if _is_missing_folder(model):
        yield Finding(f"actor_rollout_ref.model.path={model} does not exist", "give a folder, or a name on the hub")
    for file in data_files(config):
        if not file.path.exists():
            yield Finding(
                f"{file.key}: {file.path} does not exist", f"cw-grpo prepare all, or {file.key}=<an existing file>"
            )
        elif file.path.is_file() and file.path.suffix == ".parquet":  # JSON lines have no schema to look at
            yield from _check_columns(file, config)


def _check_columns(file: DataFile, config: DictConfig) -> Iterator[Finding]:
    prompt = config.data.prompt_key
    needed = ["data_source", prompt]
    if not _is_scored_by_a_model(config):
        needed.append("reward_model")
    try:
        schema = pq.ParquetFile(file.path).schema_arrow
    except (OSError, pa.ArrowException) as error:
        yield Finding(f"{file.key}: {file.path} is no parquet file ({first_line(error)})", "write it again")
        return
    missing = [name for name in needed if name not in schema.names]
    if missing:
        problem = f"{file.key}: {file.path} lacks the column(s) {', '.join(missing)}; it has {', '.join(schema.names)}"
        yield Finding(problem, "rename the columns; data.prompt_key names the prompt's")
        return
    kind = schema.field(prompt).type
    if not pa.types.is_nested(kind):  # verl may train on such prompts, as empty messages
        problem = f"{file.key}: the column {prompt} of {file.path} holds {kind}, not lists of messages"
        yield Finding(problem, 'write each prompt as [{"role": "user", "content": "..."}]')


def _is_scored_by_a_model(config: DictConfig) -> bool:
    """Whether a reward model alone scores the responses, so that a row needs no ground truth."""
    function = OmegaConf.select(config, "reward.custom_reward_function.path")
    return bool(OmegaConf.select(config, "reward.reward_model.enable")) and not function


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
