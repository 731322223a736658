"""The paper's recipes: each script composes to what examples/paper.md says, and starts its run as it should."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from omegaconf import DictConfig, OmegaConf
from verl.utils.config import validate_config

from cw_plugin.settings import differences

ROOT = Path(__file__).parent.parent
SCRIPTS = sorted(path.name for path in (ROOT / "examples").glob("run_*.sh"))
METHODS = ("cw_grpo", "grpo", "clip_cov")
PATH = f"{Path(sys.prefix) / 'bin'}{os.pathsep}{os.environ['PATH']}"


def compose(script: str, method: str, *overrides: str, cwd: Path = ROOT, **knobs: str) -> DictConfig:
    """What DRY_RUN=1 prints."""
    result = subprocess.run(
        ["bash", ROOT / "examples" / script, *overrides],
        env=os.environ | {"PATH": PATH, "DRY_RUN": "1", "METHOD": method} | knobs,
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    return OmegaConf.create(yaml.safe_load(result.stdout))


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


def is_about(condition: str, script: str, method: str) -> bool:
    return {
        "": True,
        "FSDP": "fsdp" in script,
        "Megatron": "megatron" in script,
        "1.5B": "1_5b" in script,
        "7B": "7b" in script,
        "clip_cov": method == "clip_cov",
    }[condition]


def test_every_script_composes_to_the_table_and_passes_verls_checks(composed):
    for (script, method), config in composed.items():
        for condition, key, value in table():
            if is_about(condition, script, method):
                assert OmegaConf.select(config, key) == yaml.safe_load(value.replace("e-", ".0e-")), (script, key)
        assert config.algorithm.adv_estimator == ("cw_grpo" if method == "cw_grpo" else "grpo")
        assert config.trainer.n_gpus_per_node == 4
        validate_config(config=config, use_reference_policy=True, use_critic=False)


def test_the_methods_differ_in_one_variable(composed):
    def changed(method: str) -> set[str]:
        """Against grpo, names and files of the runs apart."""
        changes = differences(composed[SCRIPTS[0], "grpo"], composed[SCRIPTS[0], method], ["*.experiment_name"])
        return {key for key, (_, now) in changes.items() if "/checkpoints/cw_grpo/" not in str(now)}

    actor = "actor_rollout_ref.actor."
    assert changed("cw_grpo") == {"algorithm.adv_estimator"}
    assert changed("clip_cov") == {f"{actor}policy_loss.loss_mode", f"{actor}clip_ratio_low", f"{actor}clip_ratio_high"}


def test_knobs_and_later_overrides_win_and_an_unknown_method_is_refused(tmp_path):
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
    for script in (SCRIPTS[0], "quickstart_cpu.sh"):
        command = ["bash", ROOT / "examples" / script]
        result = subprocess.run(command, env=os.environ | {"METHOD": "ppo"}, capture_output=True, text=True)
        assert result.returncode == 2
        assert result.stderr == "METHOD=ppo is unknown; use cw_grpo, grpo or clip_cov\n"


# verl's configuration as main_ppo composes and saves it; trains nothing, and says that it has.
MAIN = """
import json, os
from pathlib import Path
import hydra
from verl.utils.import_utils import is_trl_available

@hydra.main(config_path="pkg://verl.trainer.config", config_name="ppo_trainer", version_base=None)
def main(config):
    out, steps = Path(config.trainer.default_local_dir), config.trainer.total_training_steps
    (out / f"global_step_{steps}").mkdir()
    (out / "latest_checkpointed_iteration.txt").write_text(str(steps))
    metrics = config.ray_kwargs.ray_init.runtime_env.env_vars.VERL_FILE_LOGGER_PATH
    Path(metrics).write_text(json.dumps({"step": steps, "data": {"training/global_step": steps}}) + "\\n")
    print("training step", steps, "in", os.getcwd(), "with TRL", is_trl_available())

main()
"""


@pytest.fixture
def recipe(tmp_path):
    """A recipe's function of overrides and knobs, with that program in the place of main_ppo and an `echo` for Ray."""
    (tmp_path / "main").mkdir()
    (tmp_path / "main" / "main_ppo.py").write_text(MAIN)
    for name, text in {
        "python3": f'case "$*" in "-m verl.trainer.main_ppo"*) shift 2; set -- -m main_ppo "$@" ;; esac\n'
        f'PYTHONPATH=$PYTHONPATH:"{tmp_path}/main" exec "{sys.executable}" "$@"\n',
        "ray": 'echo ray "$@"\n',
    }.items():
        (tmp_path / "bin" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{text}")
        (tmp_path / "bin" / name).chmod(0o755)

    message, answer = {"role": "user", "content": "What is 2+2?"}, {"style": "rule", "ground_truth": "4"}
    row = {"data_source": "knoveleng/open-rs", "prompt": [message], "reward_model": answer}
    file = tmp_path / "data.parquet"
    pq.write_table(pa.Table.from_pylist([row]), file)
    knobs_of_all = {"OUT": str(tmp_path / "out"), "STEPS": "2", "TRAIN_FILES": str(file), "VAL_FILES": str(file)}

    def start(*overrides: str, cwd: Path = ROOT, **knobs: str) -> subprocess.CompletedProcess:
        path = f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}"
        return subprocess.run(
            ["bash", ROOT / "examples" / SCRIPTS[2], *overrides],
            env=os.environ | {"PATH": path} | knobs_of_all | knobs,
            cwd=cwd,
            capture_output=True,
            text=True,
            timeout=120,
        )

    return start


def test_a_recipe_goes_on_with_its_own_run_and_refuses_another(recipe, tmp_path):
    out = tmp_path / "out"
    (tmp_path / "trl").mkdir()
    first = recipe(cwd=tmp_path)
    assert first.returncode == 0 and "] step   2" in first.stdout, first.stderr
    assert f"training step 2 in {ROOT} with TRL False\n" in (out / "train.log").read_text()
    hydra = {path: path.read_bytes() for path in (out / "hydra").rglob("*") if path.is_file()}

    again = recipe()
    said = f"{out} is at its last step, 2. It goes on with a larger number of steps.\n"
    assert (again.returncode, again.stdout) == (0, said)

    other = recipe("+algorithm.cw_grpo.kernel=none", "data.seed=2", STEPS="3")
    assert (other.returncode, other.stdout) == (2, "")
    assert other.stderr == (
        f"{out} holds a run with other settings (step 2):\n"
        "  data.seed was 42, is 2\n"
        "  algorithm.cw_grpo.kernel was verl's default, is none\n"
        "Use the previous settings to resume it, or name another folder with OUT=... for a new run.\n"
    )
    assert hydra == {path: path.read_bytes() for path in (out / "hydra").rglob("*") if path.is_file()}

    # What may change, and what verl's configuration says of itself.
    memory = {"ROLLOUT_MEMORY": "0.4", "MAX_TOKENS_PER_GPU": "5000"}
    more = recipe("algorithm.lam=1.0", STEPS="3", LOGGER='["console"]', TEST_FREQ="1", SAVE_FREQ="1", **memory)
    assert more.returncode == 0 and "going on after step 2" in more.stdout, more.stderr
    assert (out / "global_step_2").exists() and (out / "global_step_3").exists()


def test_a_job_for_a_ray_cluster_is_submitted_as_it_stands(recipe, tmp_path):
    """Where OUT can be seen, other settings are refused all the same."""
    job = {"RAY_JOB": "http://head:8265"}
    expected = "ray job submit --address http://head:8265 -- python3 -m verl.trainer.main_ppo algorithm.adv_estimator="
    submitted = recipe(**job)
    assert submitted.stdout.startswith(expected) and not (tmp_path / "out").exists()
    assert recipe().returncode == 0
    assert recipe(**job).stdout.startswith(expected)
    refused = recipe(**job, METHOD="grpo")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "\n  algorithm.adv_estimator was cw_grpo, is grpo\n" in refused.stderr
