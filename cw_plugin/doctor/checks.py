"""The checks: of settings, files, the hooks in verl, and Ray."""

import difflib
import itertools
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from omegaconf import OmegaConf

from cw_plugin.errors import CWGRPOError, DataError, OptionsError, first_line, how_to_install
from cw_plugin.rewards import ground_truth_problem
from cw_plugin.rewards.pool import shared_pool
from cw_plugin.settings import flat
from cw_plugin.verl_integration import NAME
from cw_plugin.verl_integration.config import compose
from cw_plugin.verl_integration.options import check_config, estimator_and_loss, uses_v1
from cw_plugin.verl_integration.ray_cluster import find_cluster, require_listener

ACTOR = "actor_rollout_ref.actor"
LOSS = f"{ACTOR}.policy_loss.loss_mode"
REWARD = "reward.custom_reward_function"
METRICS = "VERL_FILE_LOGGER_PATH"
GRADED = 100  # different ground truths of a file that are graded; 7,000 would take a quarter of a minute
OURS = re.compile(r"(pkg://|.*/)cw_plugin[./]rewards(/__init__\.py)?")


class Finding(NamedTuple):
    """``fatal``: the run would fail, or train something other than intended. Other findings are advice."""

    what: str
    fix: str
    fatal: bool = True


def method(config: Any) -> Iterator[Finding]:
    """Estimator, loss and options that this package refuses, and names that verl looks up only after a rollout."""
    estimator, loss = config.algorithm.adv_estimator, config.actor_rollout_ref.actor.policy_loss.loss_mode
    if estimator not in (NAME, "grpo") or loss not in (NAME, "vanilla", "clip_cov"):  # importing verl takes seconds
        from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY, POLICY_LOSS_REGISTRY

        lookups = ("algorithm.adv_estimator", estimator, ADV_ESTIMATOR_REGISTRY), (LOSS, loss, POLICY_LOSS_REGISTRY)
        for key, name, known in lookups:
            if name not in known:
                what = f"{key}={name}: verl has no such name, which main_ppo would say after the first rollouts"
                yield Finding(what, f"{key}=<one of {', '.join(map(str, known))}>")
    if NAME not in (estimator, loss):
        what = f"neither algorithm.adv_estimator={estimator} nor the loss is {NAME}: this run is not CW-GRPO"
        yield Finding(what, f"algorithm.adv_estimator={NAME}", fatal=False)
    try:
        check_config(config)
    except OptionsError:
        from cw_plugin.verl_integration.hooks import verl_has_its_own

        if not verl_has_its_own():
            raise


def switches(config: Any) -> Iterator[Finding]:
    """``no``, ``off`` and ``Flase`` are text to hydra, and True to verl."""
    words = ("yes", "no", "on", "off", "true", "false")
    texts = {key: value for key, value in flat(config).items() if isinstance(value, str)}
    near = [key for key, value in texts.items() if difflib.get_close_matches(value.lower(), words, cutoff=0.7)]
    default = flat(compose([])) if near else {}
    for key in near:
        if isinstance(default.get(key), bool):
            yield Finding(f"{key}={texts[key]} is text, which verl reads as True", f"{key}=True, or {key}=False")


def scope(config: Any) -> Iterator[Finding]:
    """Whether the advantages of tokens that share statistics can differ."""
    estimator, loss = estimator_and_loss(config)
    actor, n = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout.n
    alike = "have equal advantages, so that every covariance is 0 and every weight 1: this is plain GRPO"
    if estimator and n < 2 and (config.algorithm.get(NAME) or {}).get("scope") != "batch":
        fix = f"actor_rollout_ref.rollout.n=12, or +algorithm.{NAME}.scope=batch"
        yield Finding(f"rollout.n={n}: the tokens of a prompt group of one response {alike}", fix)
    if loss and not actor.use_dynamic_bsz and actor.ppo_micro_batch_size_per_gpu == 1:
        fix = f"algorithm.adv_estimator={NAME} with {LOSS}=vanilla, or {ACTOR}.ppo_micro_batch_size_per_gpu=4"
        yield Finding(f"loss_mode={NAME}: the tokens of a micro-batch of one response {alike}", fix)


def reward(config: Any) -> Iterator[Finding]:
    """A reward function that verl ignores, or a missing one."""
    if ignored := OmegaConf.select(config, "custom_reward_function.path"):
        what = f"custom_reward_function.path={ignored} stands at the top level, where verl ignores it silently"
        yield Finding(what, f"{REWARD}.path={ignored}, and {REWARD}.name")
    elif not config.reward.custom_reward_function.path:
        what = f"{REWARD}.path is not set: verl drops responses whose data_source it does not know"
        fix = f"{REWARD}.path=pkg://cw_plugin.rewards {REWARD}.name=compute_score, for answers in mathematics"
        yield Finding(what, fix, fatal=False)


def aggregation(config: Any) -> Iterator[Finding]:
    """The paper's objective averages over the tokens of a response, then over responses; none is empty."""
    actor, prompts = config.actor_rollout_ref.actor, config.data.train_batch_size
    if actor.loss_agg_mode != "seq-mean-token-mean":
        what = f"loss_agg_mode={actor.loss_agg_mode}: the paper averages over a response's tokens, then over responses"
        yield Finding(what, f"{ACTOR}.loss_agg_mode=seq-mean-token-mean", fatal=False)
    if prompts % actor.ppo_mini_batch_size:
        what = f"data.train_batch_size={prompts}: verl adds empty responses, which count in a mean over responses"
        yield Finding(what, f"a multiple of ppo_mini_batch_size={actor.ppo_mini_batch_size}", fatal=False)


def metrics(config: Any) -> Iterator[Finding]:
    """What ``cw-grpo report`` would not find: metrics of another logger, or of earlier starts; the last accuracy."""
    names = [config.trainer.logger] if isinstance(config.trainer.logger, str) else list(config.trainer.logger or [])
    if not {"file", "tensorboard"} & set(names):
        what = f"trainer.logger=[{','.join(names)}]: cw-grpo report will not find this run's metrics"
        fix = f"trainer.logger=[{','.join([*names, 'file'])}], and {METRICS}=FOLDER/metrics.jsonl in the environment"
        yield Finding(what, fix, fatal=False)
    path = OmegaConf.select(config, f"ray_kwargs.ray_init.runtime_env.env_vars.{METRICS}") or os.environ.get(METRICS)
    if "file" in names and path and Path(path).exists():
        what = f"{path} exists, and main_ppo overwrites it, also where it resumes; the scripts of examples/ rename it"
        kept = next(other for n in itertools.count(1) if not (other := Path(path).with_suffix(f".{n}.jsonl")).exists())
        yield Finding(what, f"mv {path} {kept} before the start: cw-grpo report reads both", fatal=False)
    if config.trainer.test_freq <= 0:
        what = f"trainer.test_freq={config.trainer.test_freq}: verl does not measure the accuracy of the last step"
        yield Finding(what, "trainer.test_freq=50, or cw-grpo evaluate after training", fatal=False)


def verl(config: Any) -> Iterator[Finding]:
    """What verl itself refuses: settings, and a reward function that its reward workers cannot load."""
    from hydra.errors import InstantiationException
    from verl.trainer.ppo import reward, utils
    from verl.utils.config import validate_config

    reward.get_custom_reward_fn(config)
    try:
        validate_config(config, utils.need_reference_policy(config), utils.need_critic(config))
    except CWGRPOError:
        pass  # of this package's hook; other checks report it
    except (ValueError, AssertionError, NotImplementedError, InstantiationException) as error:
        said = error.__cause__ or error  # hydra wraps what a class of verl's settings says
        yield Finding(
            f"verl refuses these settings: {' '.join(str(said).split())}", "correct the setting that verl names"
        )


def _files(config: Any) -> Iterator[tuple[str, Path]]:
    """The local data files, each with the setting that names it. Others (``hdfs://``) are verl's to copy."""
    for key in ("train_files", "val_files"):
        value = config.data[key]
        for path in [value] if isinstance(value, str) else list(value or []):
            if "://" not in path:
                yield f"data.{key}", Path(path).expanduser()


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
    for key, path in _files(config):
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


def ground_truths(config: Any) -> Iterator[Finding]:
    """Rows that this package's reward cannot grade; only if the run uses it."""
    for key, path in _files(config) if OURS.fullmatch(str(OmegaConf.select(config, f"{REWARD}.path"))) else []:
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


_PROBE = """
from verl.trainer.ppo.core_algos import get_adv_estimator_fn, get_policy_loss_fn
get_adv_estimator_fn("cw_grpo"), get_policy_loss_fn("cw_grpo")
from cw_plugin.verl_integration.hooks import require_hooks
from omegaconf import OmegaConf
require_hooks(OmegaConf.create({"trainer": {"use_v1": %s}}))
"""


def _judge(where: str, result: subprocess.CompletedProcess[str]) -> Iterator[Finding]:
    if result.returncode:
        said = "".join(result.stderr.strip().splitlines()[-1:])
        fix = f"{how_to_install()}, there, beside verl; unset VERL_USE_EXTERNAL_PLUGINS; restart a running cluster"
        yield Finding(f"{where} finds no cw_grpo that fits its verl ({said})", fix)


def fresh_interpreter(config: Any) -> Iterator[Finding]:
    """What ``python -m verl.trainer.main_ppo`` would find."""
    command = [sys.executable, "-c", _PROBE % uses_v1(config)]
    yield from _judge(f"a fresh {sys.executable}", subprocess.run(command, capture_output=True, text=True, cwd="/"))


def ray_cluster(config: Any) -> Iterator[Finding]:
    """The cluster that main_ppo would join must answer; Ray itself waits for minutes."""
    address, source = find_cluster(config) or ("", "")
    try:
        require_listener(address)
    except OSError:
        what = f"{source} names a Ray cluster, {address}, which does not answer: main_ppo would wait for minutes"
        yield Finding(what, "++ray_kwargs.ray_init.address=local, for a new Ray; or start the cluster again")


def ray_workers(config: Any) -> Iterator[Finding]:
    """Run the probe in a worker on each node, of the cluster that main_ppo would join, or of a new one."""
    if list(ray_cluster(config)):
        return
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    command = ["-c", _PROBE % uses_v1(config)]

    @ray.remote(num_cpus=0)
    def probe() -> Any:  # sent by value: a worker without this package could import no function of it
        return subprocess.run([sys.executable, *command], capture_output=True, text=True)

    address, _ = find_cluster(config) or ("local", "")
    with ray.init(address=address, log_to_driver=False, logging_level="ERROR"):
        for node in filter(lambda node: node["Alive"], ray.nodes()):
            there = probe.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False))
            yield from _judge(f"a Ray worker on {node['NodeManagerAddress']}", ray.get(there.remote()))
