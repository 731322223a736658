"""The paper's recipes: each script composes to what examples/paper.md says, and starts its run as it should."""

import pytest

pytest.importorskip("verl")

import itertools
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import yaml
from interpreter import ROOT, bash
from omegaconf import DictConfig, OmegaConf
from verl.utils.config import validate_config

from cw_plugin.lab.configs import differences

SCRIPTS = sorted(path.name for path in (ROOT / "examples").glob("run_*.sh"))
METHODS = ("cw_grpo", "grpo", "clip_cov")
# Which rows of the table a run is of, by what its script's name or its method has.
CONDITIONS = {"": "", "FSDP": "fsdp", "Megatron": "megatron", "1.5B": "1_5b", "7B": "7b", "clip_cov": "clip_cov"}


def compose(script: str, method: str, *overrides: str, cwd: Path = ROOT, **knobs: str) -> DictConfig:
    """What DRY_RUN=1 prints."""
    return OmegaConf.create(bash(script, *overrides, cwd=cwd, DRY_RUN="1", METHOD=method, **knobs).stdout)


@pytest.fixture(scope="module")
def composed() -> dict[tuple[str, str], DictConfig]:
    pairs = [*itertools.product(SCRIPTS[:1], METHODS), *((script, "cw_grpo") for script in SCRIPTS[1:])]
    with ThreadPoolExecutor(2) as threads:
        return dict(zip(pairs, threads.map(lambda pair: compose(*pair), pairs), strict=True))


def table() -> list[tuple[str, str, str]]:
    """The rows of paper.md's table: which scripts a row is of ("" for all), verl's key, and its value."""
    text = (ROOT / "examples" / "paper.md").read_text()
    lines = text[text.index("| setting |") :].split("\n\n")[0].splitlines()[2:]
    pattern = re.compile(r".*\| (?:([\w.-]+): )?`([a-z_.]+)` \| `([^`]+)` \|")
    return [(match[1] or "", match[2], match[3]) for match in map(pattern.fullmatch, lines)]  # type: ignore[index]


def arguments(script: str, **knobs: str) -> dict[str, str]:
    """What DRY_RUN=1 prints where a script has arguments instead of a configuration, one to a line."""
    found: dict[str, list[str]] = {}
    for line in bash(script, DRY_RUN="1", **knobs).stdout.splitlines():
        if line.startswith("--"):
            values = found.setdefault(line[2:], [])
        else:
            values.append(line)
    return {name: " ".join(values) for name, values in found.items()}


def test_every_script_composes_to_the_table_and_passes_verls_checks(composed):
    for (script, method), config in composed.items():
        for condition, key, value in table():
            if CONDITIONS[condition] in f"{script} {method}":
                assert OmegaConf.select(config, key) == yaml.safe_load(value.replace("e-", ".0e-")), (script, key)
        assert config.algorithm.adv_estimator == ("cw_grpo" if method == "cw_grpo" else "grpo")
        assert config.trainer.n_gpus_per_node == 4
        validate_config(config=config, use_reference_policy=True, use_critic=False)


ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
ALGORITHM, OPTIMIZER = "trainer.algorithm", "trainer.policy.optimizer_config"
SAMPLING = "generator.sampling_params"
# verl's key in the table -> what ms-swift, OpenRLHF and SkyRL call it
IN_HOSTS: dict[str, tuple[str | None, str | None, str | None]] = {
    f"{ACTOR}.optim.lr": ("learning_rate", "actor.adam.lr", f"{OPTIMIZER}.lr"),
    f"{ACTOR}.optim.lr_warmup_steps_ratio": ("warmup_ratio", "actor.lr_warmup_ratio", None),
    f"{ACTOR}.optim.lr_scheduler_type": (None, "actor.lr_scheduler", f"{OPTIMIZER}.scheduler"),
    f"{ACTOR}.optim.min_lr_ratio": (None, "actor.min_lr_ratio", None),
    f"{ACTOR}.optim.weight_decay": ("weight_decay", "actor.adam.weight_decay", f"{OPTIMIZER}.weight_decay"),
    f"{ACTOR}.optim.betas": (None, "actor.adam.betas", f"{OPTIMIZER}.adam_betas"),
    f"{ACTOR}.optim.clip_grad": ("max_grad_norm", "actor.max_norm", f"{OPTIMIZER}.max_grad_norm"),
    f"{ACTOR}.loss_agg_mode": (None, "actor.loss_agg_mode", f"{ALGORITHM}.loss_reduction"),
    f"{ACTOR}.entropy_coeff": (None, "actor.entropy_coef", None),
    f"{ACTOR}.use_kl_loss": (None, "algo.kl.use_loss", f"{ALGORITHM}.use_kl_loss"),
    f"{ACTOR}.kl_loss_type": (None, "algo.kl.estimator", f"{ALGORITHM}.kl_estimator_type"),
    f"{ACTOR}.kl_loss_coef": ("beta", "algo.kl.init_coef", f"{ALGORITHM}.kl_loss_coef"),
    f"{ACTOR}.ppo_epochs": ("num_iterations", "train.max_epochs", "trainer.update_epochs_per_batch"),
    f"{ACTOR}.ppo_mini_batch_size": (None, None, "trainer.policy_mini_batch_size"),
    f"{ROLLOUT}.n": ("num_generations", "rollout.n_samples_per_prompt", "generator.n_samples_per_prompt"),
    f"{ROLLOUT}.temperature": ("temperature", "rollout.temperature", f"{SAMPLING}.temperature"),
    f"{ROLLOUT}.top_p": ("top_p", "rollout.top_p", f"{SAMPLING}.top_p"),
    "algorithm.norm_adv_by_std_in_grpo": (None, None, f"{ALGORITHM}.grpo_norm_by_std"),
    "data.train_batch_size": (None, "rollout.batch_size", "trainer.train_batch_size"),
    "data.max_prompt_length": ("max_length", None, "trainer.max_prompt_length"),
    "data.max_response_length": ("max_completion_length", "rollout.max_new_tokens", f"{SAMPLING}.max_generate_length"),
    "data.seed": ("seed", "train.seed", "trainer.seed"),
    "trainer.total_training_steps": ("max_steps", None, "trainer.max_training_steps"),
    "trainer.save_freq": ("save_steps", "ckpt.save_steps", "trainer.ckpt_interval"),
}
SWIFT, OPENRLHF, SKYRL = range(3)


def check_with_table(host: int, settings: dict[str, str], in_host: dict[str, str]) -> dict[str, str]:
    """The settings are those of the table, which is returned; ``in_host`` says how verl's values read in this host."""
    rows = {key: value for condition, key, value in table() if condition in ("", "FSDP", "1.5B")}
    names = {key: name for key, several in IN_HOSTS.items() if (name := several[host])}
    wanted = {name: in_host.get(rows[key], rows[key]) for key, name in names.items()}
    assert {name: settings[name] for name in wanted} == wanted
    return rows


def test_the_recipe_of_ms_swift_has_the_values_of_the_table():
    settings = arguments("swift/paper.sh")
    rows = check_with_table(SWIFT, settings, {})
    responses = int(rows["data.train_batch_size"]) * int(rows["actor_rollout_ref.rollout.n"])
    micro, parts = settings["per_device_train_batch_size"], settings["gradient_accumulation_steps"]
    assert 4 * int(micro) * int(parts) == responses
    assert (settings["loss_type"], settings["scale_rewards"]) == ("grpo", "group")
    other = arguments("swift/paper.sh", MODEL_PATH="Qwen/7B", MAX_RESPONSE="3584", RUNS_DIR="/runs")
    assert (other["vllm_max_model_len"], other["output_dir"]) == ("4096", "/runs/swift/7B-cw_grpo")


def test_the_recipe_of_openrlhf_has_the_values_of_the_table():
    settings = arguments("openrlhf/paper.sh")
    in_host = {"cosine": "cosine_with_min_lr", "low_var_kl": "k3", "[0.9, 0.999]": "0.9 0.999", "True": ""}
    rows = check_with_table(OPENRLHF, settings, in_host)
    prompts, responses = int(rows["data.train_batch_size"]), int(rows["actor_rollout_ref.rollout.n"])
    assert int(settings["train.batch_size"]) == prompts * responses  # one update of a batch
    assert int(settings["data.max_samples"]) == prompts * int(rows["trainer.total_training_steps"])
    lengths = [int(rows[f"data.max_{part}_length"]) for part in ("prompt", "response")]
    assert int(settings["data.max_len"]) == sum(lengths)
    assert settings["algo.advantage.estimator"] == "group_norm"  # reward minus mean, over deviation
    short = arguments("openrlhf/paper.sh", MAX_RESPONSE="3584", RUNS_DIR="/runs")
    assert (short["rollout.max_new_tokens"], short["data.max_len"]) == ("3584", "4096")
    assert short["ckpt.output_dir"] == "/runs/openrlhf/DeepSeek-R1-Distill-Qwen-1.5B-cw_grpo"


def test_the_recipe_of_skyrl_has_the_values_of_the_table():
    settings = dict(line.split("=", 1) for line in bash("skyrl/paper.sh", DRY_RUN="1").stdout.splitlines())
    in_host = {"seq-mean-token-mean": "sequence_mean", "low_var_kl": "k3", "True": "true"}
    rows = check_with_table(SKYRL, settings, in_host)
    warm_up = float(rows["actor_rollout_ref.actor.optim.lr_warmup_steps_ratio"])
    assert int(settings[f"{OPTIMIZER}.num_warmup_steps"]) == warm_up * int(rows["trainer.total_training_steps"])
    assert settings[f"{ALGORITHM}.advantage_estimator"] == "grpo"
    assert settings[f"{ALGORITHM}.use_entropy_loss"] == "false" and rows["actor_rollout_ref.actor.entropy_coeff"] == "0"


def test_the_methods_differ_in_one_variable(composed):
    def changed(method: str) -> set[str]:
        """Against grpo, names and files of the runs apart."""
        changes = differences(composed[SCRIPTS[0], "grpo"], composed[SCRIPTS[0], method], ["*.experiment_name"])
        return {key for key, (_, now) in changes.items() if "/checkpoints/cw_grpo/" not in str(now)}

    actor = "actor_rollout_ref.actor."
    assert changed("cw_grpo") == {"algorithm.adv_estimator"}
    assert changed("clip_cov") == {f"{actor}policy_loss.loss_mode", f"{actor}clip_ratio_low", f"{actor}clip_ratio_high"}


def test_knobs_and_later_overrides_win(tmp_path):
    overrides = ("actor_rollout_ref.rollout.n=3", "trainer.nnodes=2")
    (tmp_path / "model").mkdir()
    (tmp_path / "trl").mkdir()  # a folder here is not imported, and paths are of here
    config = compose(
        SCRIPTS[0], "grpo", *overrides, cwd=tmp_path, SEED="7", MODEL_PATH="model", TRAIN_FILES="a.parquet"
    )
    assert (config.actor_rollout_ref.rollout.n, config.trainer.nnodes) == (3, 2)
    assert (config.data.seed, config.actor_rollout_ref.rollout.seed) == (7, 7)
    assert config.trainer.default_local_dir == f"{tmp_path}/checkpoints/cw_grpo/{SCRIPTS[0][:-3]}-grpo-seed7"
    assert config.actor_rollout_ref.model.path == f"{tmp_path}/model"
    assert config.data.train_files == f"{tmp_path}/a.parquet"
    elsewhere = compose(SCRIPTS[0], "grpo", RUNS_DIR="/scratch/runs")
    assert elsewhere.trainer.default_local_dir == f"/scratch/runs/cw_grpo/{SCRIPTS[0][:-3]}-grpo"


@pytest.mark.parametrize("host", ["swift", "openrlhf", "skyrl"])
def test_a_method_is_the_weights_in_the_environment_of_the_trainer(host, tmp_path):
    """A program takes the trainer's place, and prints what it gets."""
    for name in ("swift", "python3"):
        program = f'#!/bin/bash\ncase "$*" in *folder_lock*) exec {sys.executable} "$@" ;; esac\n'
        (tmp_path / name).write_text(program + 'echo "weights are [$CW_GRPO_WEIGHTS]"\n')
        (tmp_path / name).chmod(0o755)

    def start(method: str, of_user: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        path, mine = f"{tmp_path}{os.pathsep}{os.environ['PATH']}", {"METHOD": method, "CW_GRPO_WEIGHTS": of_user}
        out = str(tmp_path / f"{method}-{of_user}")
        return bash(f"{host}/paper.sh", code=code, OUT=out, PATH=path, CW_PLUGIN_SCRIPT="1", **mine)

    for method, of_user, weights in (
        ("cw_grpo", "", ""),
        ("cw_grpo", "mine:own", "mine:own"),
        ("grpo", "", "none"),
    ):
        assert start(method, of_user).stdout.splitlines()[-1] == f"weights are [{weights}]"
    for method, of_user in (("cw_grpo", "none"), ("grpo", "mine:own")):
        assert "contradict each other" in start(method, of_user, code=2).stderr


def test_an_unknown_method_is_refused():
    others = ("trl/paper.sh", "trl/quickstart_cpu.sh", "openrlhf/paper.sh", "skyrl/paper.sh", "swift/paper.sh")
    for script in (SCRIPTS[0], "quickstart_cpu.sh", *others):
        assert "METHOD=ppo is unknown" in bash(script, code=2, METHOD="ppo").stderr
