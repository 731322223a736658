"""The paper's recipes: each script composes to what examples/paper.md says, and starts its run as it should."""

import itertools
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import yaml
from interpreter import ROOT, THAT_TRAIN, bash
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


@pytest.mark.parametrize("script", THAT_TRAIN)
def test_help_prints_the_scripts_first_comment(script):
    said = bash(script, "--help").stdout
    assert f"bash examples/{script}" in said and "#" not in said and not said.count("source ")


def test_every_script_composes_to_the_table_and_passes_verls_checks(composed):
    for (script, method), config in composed.items():
        for condition, key, value in table():
            if CONDITIONS[condition] in f"{script} {method}":
                assert OmegaConf.select(config, key) == yaml.safe_load(value.replace("e-", ".0e-")), (script, key)
        assert config.algorithm.adv_estimator == ("cw_grpo" if method == "cw_grpo" else "grpo")
        assert config.trainer.n_gpus_per_node == 4
        validate_config(config=config, use_reference_policy=True, use_critic=False)


SWIFT = {  # ms-swift's argument -> verl's key in the table
    "learning_rate": "actor_rollout_ref.actor.optim.lr",
    "warmup_ratio": "actor_rollout_ref.actor.optim.lr_warmup_steps_ratio",
    "weight_decay": "actor_rollout_ref.actor.optim.weight_decay",
    "max_grad_norm": "actor_rollout_ref.actor.optim.clip_grad",
    "num_generations": "actor_rollout_ref.rollout.n",
    "num_iterations": "actor_rollout_ref.actor.ppo_epochs",
    "max_steps": "trainer.total_training_steps",
    "save_steps": "trainer.save_freq",
    "max_length": "data.max_prompt_length",
    "max_completion_length": "data.max_response_length",
    "temperature": "actor_rollout_ref.rollout.temperature",
    "top_p": "actor_rollout_ref.rollout.top_p",
    "beta": "actor_rollout_ref.actor.kl_loss_coef",
    "seed": "data.seed",
}


def test_the_recipe_of_ms_swift_has_the_values_of_the_table():
    rows = {key: value for condition, key, value in table() if condition in ("", "FSDP", "1.5B")}
    settings = arguments("swift/paper.sh")
    assert {name: settings[name] for name in SWIFT} == {name: rows[key] for name, key in SWIFT.items()}
    responses = int(rows["data.train_batch_size"]) * int(rows["actor_rollout_ref.rollout.n"])
    micro, parts = settings["per_device_train_batch_size"], settings["gradient_accumulation_steps"]
    assert 4 * int(micro) * int(parts) == responses
    assert (settings["loss_type"], settings["scale_rewards"]) == ("grpo", "group")
    other = arguments("swift/paper.sh", MODEL_PATH="Qwen/7B", MAX_RESPONSE="3584", RUNS_DIR="/runs")
    assert (other["vllm_max_model_len"], other["output_dir"]) == ("4096", "/runs/swift/7B-cw_grpo")


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


def test_on_a_cpu_several_ranks_of_vllm_have_a_process_each():
    overlay, ranks = {"OVERLAY": "examples/cpu/overlay.sh"}, "actor_rollout_ref.rollout.tensor_model_parallel_size"
    for script, overrides, alone in (
        (SCRIPTS[0], (), True),
        (SCRIPTS[0], (f"{ranks}=2",), False),
        (SCRIPTS[0], (f"{ranks}=2", f"{ranks}=1"), True),
        ("run_qwen2_5_math_7b_megatron.sh", ("actor_rollout_ref.actor.megatron.tensor_model_parallel_size=2",), True),
    ):
        vllm = compose(
            script, "grpo", *overrides, ROLLOUT_TP="1", **overlay
        ).actor_rollout_ref.rollout.engine_kwargs.vllm
        assert ("distributed_executor_backend" in vllm) == alone, overrides


@pytest.mark.parametrize("host", ["swift", "openrlhf", "skyrl"])
def test_a_method_is_the_kernel_in_the_environment_of_the_trainer(host, tmp_path):
    """A program takes the trainer's place, and prints what it gets."""
    for name in ("swift", "python3"):
        program = f'#!/bin/bash\ncase "$*" in *folder_lock*) exec {sys.executable} "$@" ;; esac\n'
        (tmp_path / name).write_text(program + 'echo "kernel is [$CW_GRPO_KERNEL]"\n')
        (tmp_path / name).chmod(0o755)

    def start(method: str, of_user: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        path, mine = f"{tmp_path}{os.pathsep}{os.environ['PATH']}", {"METHOD": method, "CW_GRPO_KERNEL": of_user}
        out = str(tmp_path / f"{method}-{of_user}")
        return bash(f"{host}/paper.sh", code=code, OUT=out, PATH=path, CW_PLUGIN_SCRIPT="1", **mine)

    kernels = {
        ("cw_grpo", ""): "",
        ("cw_grpo", "mine:kernel"): "mine:kernel",
        ("grpo", ""): "none",
        ("grpo", "none"): "none",
    }
    for (method, of_user), kernel in kernels.items():
        assert start(method, of_user).stdout.splitlines()[-1] == f"kernel is [{kernel}]"
    for method, of_user in (("cw_grpo", "none"), ("grpo", "mine:kernel")):
        said = f"METHOD={method} and CW_GRPO_KERNEL={of_user} contradict each other; unset CW_GRPO_KERNEL"
        assert start(method, of_user, code=2).stderr.startswith(said)


def test_an_unknown_method_is_refused():
    others = ("trl/paper.sh", "trl/quickstart_cpu.sh", "openrlhf/paper.sh", "skyrl/paper.sh", "swift/paper.sh")
    for script in (SCRIPTS[0], "quickstart_cpu.sh", *others):
        known = "cw_grpo or grpo" if "/" in script else "cw_grpo, grpo or clip_cov"
        assert bash(script, code=2, METHOD="ppo").stderr == f"METHOD=ppo is unknown; use {known}\n"
