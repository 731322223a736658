"""The checks of files: the model's folder and positions, and the columns of the data."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from cw_plugin.errors import first_line
from cw_plugin.verl_integration.finding import Finding
from cw_plugin.verl_integration.ground_truths import data_files


def _is_missing_folder(model: str) -> bool:
    """False for a name on the hub, which lengths() looks up."""
    place = Path(model).expanduser()
    like_a_folder = model[0] in "/.~" or model.count("/") > 1 or ("/" in model and place.parent.is_dir())
    return like_a_folder and "://" not in model and not place.exists()


def files(config: Any) -> Iterator[Finding]:
    """Whether the model's folder and the data files exist, and the latter have the columns that verl reads."""
    model, prompt = config.actor_rollout_ref.model.path, config.data.prompt_key
    if _is_missing_folder(model):
        yield Finding(f"actor_rollout_ref.model.path={model} does not exist", "give a folder, or a name on the hub")
    for key, path in data_files(config):
        if not path.exists():
            yield Finding(f"{key}: {path} does not exist", f"cw-grpo prepare all, or {key}=<an existing file>")
        if not path.is_file() or path.suffix != ".parquet":
            continue  # JSON lines have no schema to look at
        try:
            schema = pq.ParquetFile(path).schema_arrow
        except (OSError, pa.ArrowException) as error:
            yield Finding(f"{key}: {path} is no parquet file ({first_line(error)})", "write it again")
            continue
        missing = [name for name in ("data_source", prompt, "reward_model") if name not in schema.names]
        if missing:
            what = f"{key}: {path} lacks the column(s) {', '.join(missing)}; it has {', '.join(schema.names)}"
            yield Finding(what, "rename the columns; data.prompt_key names the prompt's")
        elif not pa.types.is_nested(schema.field(prompt).type):  # verl may train on such prompts, as empty messages
            what = f"{key}: the column {prompt} of {path} holds {schema.field(prompt).type}, not lists of messages"
            yield Finding(what, 'write each prompt as [{"role": "user", "content": "..."}]')


def lengths(config: Any) -> Iterator[Finding]:
    """Responses that vLLM would cut: the model's positions and max_model_len must hold prompt and response."""
    from transformers import AutoConfig

    if _is_missing_folder(config.actor_rollout_ref.model.path):
        return  # files() says so
    data, model, limit = config.data, config.actor_rollout_ref.model, config.actor_rollout_ref.rollout.max_model_len
    longest = data.max_prompt_length + data.max_response_length
    text = AutoConfig.from_pretrained(model.path, trust_remote_code=model.trust_remote_code).get_text_config()
    room = min(getattr(text, "max_position_embeddings", longest), limit or longest)
    if longest > room:
        what = f"data.max_prompt_length + data.max_response_length = {longest}: vLLM cuts what is longer than {room}"
        yield Finding(what, f"a sum of {room}; or a larger rollout.max_model_len, if the model has more positions")
