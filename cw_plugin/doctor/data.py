"""The data files, and the lengths that they, the model and the settings allow."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cw_plugin.doctor.finding import Finding
from cw_plugin.doctor.settings import sequence_parallel
from cw_plugin.errors import first_line
from cw_plugin.verl_integration.prompts import prompt_lengths

SHOWN = 3
HDFS = "hdfs:"  # verl copies such files to the local disk; the doctor does not


def _files(config: Any) -> dict[Path, str]:
    """The local data files, each with the setting that names it (the first one, if both name it)."""
    named: dict[Path, str] = {}
    for key in ("train_files", "val_files"):
        value = config.data[key]
        for path in [value] if isinstance(value, str) else list(value or []):
            if path.startswith(HDFS):
                continue
            named.setdefault(Path(path).expanduser(), key)
    return named


def lengths(config: Any) -> Iterator[Finding]:
    """Whether the model, vLLM and verl's micro-batches can hold prompt and response: one finding, one fix."""
    from transformers import AutoConfig

    data, actor, model = config.data, config.actor_rollout_ref.actor, config.actor_rollout_ref.model
    rollout, ref = config.actor_rollout_ref.rollout, config.actor_rollout_ref.ref
    longest = fitting = data.max_prompt_length + data.max_response_length
    positions = None
    if model.path.startswith(HDFS):
        yield Finding(
            "model",
            f"the model {model.path} is not on a local disk",
            "the doctor cannot check its positions and the lengths of the prompts",
            "to check these, run the doctor with actor_rollout_ref.model.path=<a local copy>",
            fatal=False,
        )
    else:
        try:
            text = AutoConfig.from_pretrained(model.path, trust_remote_code=model.trust_remote_code).get_text_config()
            positions = getattr(text, "max_position_embeddings", None)
        except (OSError, ValueError) as error:
            yield Finding(
                "model",
                f"the model {model.path} cannot be read ({first_line(error)})",
                "verl would stop; the doctor cannot check lengths",
                "actor_rollout_ref.model.path=<a folder or a name on the hub>, or check the network",
            )
    short: dict[str, str] = {}  # what is too short, and why it matters
    fixes = []
    if positions is not None and positions < longest:
        fitting = positions
        prompt = min(data.max_prompt_length, positions // 2)
        if prompt != data.max_prompt_length:
            fixes.append(f"data.max_prompt_length={prompt}")
        fixes.append(f"data.max_response_length={positions - prompt}")
        short[f"the model has {positions} positions"] = "vLLM cuts longer responses"
    limit = rollout.max_model_len
    if limit is not None and positions is not None and limit > positions:
        fixes.append(f"actor_rollout_ref.rollout.max_model_len={positions}")
        short[f"rollout.max_model_len={limit} but the model has {positions} positions"] = "vLLM refuses to start"
    elif limit is not None and limit < fitting:
        fixes.append(f"actor_rollout_ref.rollout.max_model_len={fitting}")
        short[f"rollout.max_model_len={limit}"] = "vLLM cuts longer responses"
    gpus = sequence_parallel(actor)
    on = f" on {gpus} GPUs" if gpus > 1 else ""
    with_ref = actor.use_kl_loss or config.algorithm.use_kl_in_reward
    for part, name, used in (
        ("actor", "ppo_max_token_len_per_gpu", actor.use_dynamic_bsz),
        ("rollout", "log_prob_max_token_len_per_gpu", rollout.log_prob_use_dynamic_bsz),
        ("ref", "log_prob_max_token_len_per_gpu", ref.log_prob_use_dynamic_bsz and with_ref),
    ):
        tokens = config.actor_rollout_ref[part][name]
        if used and tokens * gpus < fitting:
            fixes.append(f"actor_rollout_ref.{part}.{name}={4 * fitting}")
            short[f"{part}.{name}={tokens}{on}"] = "verl stops at a sequence that no micro-batch can hold"
    if short:
        yield Finding(
            "lengths",
            f"prompt and response may have {longest} tokens together; {', '.join(short)}",
            "; ".join(dict.fromkeys(short.values())),
            " ".join(fixes),
        )


def files(config: Any) -> Iterator[Finding]:
    """Whether the files exist, have verl's columns, and have a reward function."""
    import pyarrow.parquet as pq
    from pyarrow import ArrowException

    own_reward = config.reward.custom_reward_function.path
    columns = ("data_source", config.data.prompt_key, "reward_model")
    for path, key in _files(config).items():
        if not path.exists():
            yield Finding(
                "data", f"data.{key}: {path} does not exist", "verl would stop",
                f"cw-grpo prepare all, or data.{key}=<an existing file>",
            )  # fmt: skip
            continue
        if path.suffix != ".parquet":
            continue  # JSON lines have no schema to look at
        try:
            names = pq.read_schema(path).names
            missing = [column for column in columns if column not in names]
            sources = set() if missing else set(pq.read_table(path, columns=["data_source"])[0].to_pylist())
        except (OSError, ArrowException) as error:
            yield Finding(
                "data", f"data.{key}: {path} is no parquet file ({first_line(error)})", "verl would stop",
                "write it again, with cw-grpo prepare",
            )  # fmt: skip
            continue
        if missing:
            yield Finding(
                "data",
                f"data.{key}: {path} lacks the column(s) {', '.join(missing)}; it has {', '.join(names)}",
                "verl's dataset and reward read them",
                "write it with cw-grpo prepare, or rename the columns (data.prompt_key names the prompt's)",
            )
        foreign = sorted(source for source in sources if not own_reward and not _verl_scores(str(source)))
        if foreign:
            yield Finding(
                "reward",
                f"data.{key}: verl has no reward function for data_source {', '.join(foreign[:SHOWN])}",
                "verl would stop at the first batch with NotImplementedError",
                "reward.custom_reward_function.path=pkg://cw_plugin.rewards "
                "reward.custom_reward_function.name=compute_score",
            )


def prompts(config: Any) -> Iterator[Finding]:
    """Training prompts longer than data.max_prompt_length, tokenised as verl does."""
    import pyarrow.parquet as pq
    from jinja2 import TemplateError
    from pyarrow import ArrowException
    from transformers import AutoTokenizer

    path, limit, column = config.actor_rollout_ref.model.path, config.data.max_prompt_length, config.data.prompt_key
    files = [file for file, key in _files(config).items() if key == "train_files"]
    if not files or path.startswith(HDFS):
        return
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            path, trust_remote_code=config.actor_rollout_ref.model.trust_remote_code
        )
    except (OSError, ValueError):
        return  # reported by lengths()
    tokenizer.chat_template = config.actor_rollout_ref.model.custom_chat_template or tokenizer.chat_template
    for file in files:
        try:
            chats = pq.read_table(file, columns=[column])[0].to_pylist()
        except (OSError, ArrowException):
            continue  # reported by files()
        try:
            lengths = prompt_lengths(tokenizer, chats, config.data.apply_chat_template_kwargs)
        except (ValueError, TemplateError) as error:
            yield Finding(
                "prompts",
                f"the model's chat template cannot render the prompts of {file} ({first_line(error)})",
                "verl would stop",
                "actor_rollout_ref.model.custom_chat_template=<a template>, or a chat model",
            )
            continue
        longer = sum(length > limit for length in lengths)
        if longer:
            dropped = config.data.filter_overlong_prompts
            yield Finding(
                "prompts",
                f"{longer} of {len(lengths)} prompts of {file} have more than {limit} tokens, the longest "
                f"{max(lengths)}",
                "verl leaves them out"
                if dropped
                else f"data.truncation={config.data.truncation} meets them in training",
                f"data.max_prompt_length={max(lengths)}"
                + ("" if dropped else ", or data.filter_overlong_prompts=True"),
                fatal=not dropped or longer == len(lengths),
            )


def _verl_scores(source: str) -> bool:
    """Whether verl's default_compute_score knows the data source; for an unknown one it raises first of all."""
    from verl.utils.reward_score import default_compute_score

    try:
        default_compute_score(source, "", "")
    except NotImplementedError:
        return False
    except Exception:
        return True  # it knows the source; another error is about the empty answer
    return True
