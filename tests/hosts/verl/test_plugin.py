"""How verl finds the plugin, what it refuses before Ray starts, and what it says when something does not fit."""

import pytest

pytest.importorskip("verl")

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import verl
from interpreter import ROOT, python
from omegaconf import OmegaConf
from trainers import CW_GRPO, GRPO, LEGACY, LOSS, composed, validate
from verl.trainer import main_ppo

from cw_plugin.errors import HostError, OptionsError
from cw_plugin.hosts.verl import hooks
from cw_plugin.hosts.verl.refused_settings import check_config, uses_estimator, uses_loss, uses_v1

VERL = Path(verl.__file__).parent
MODULE = "cw_plugin.hosts.verl.register"
REGISTERED = """
import verl
from omegaconf import OmegaConf
from verl.trainer.ppo import core_algos
from cw_plugin.hosts.verl.hooks import require_hooks
assert core_algos.get_adv_estimator_fn('cw_grpo').__module__ == 'cw_plugin.hosts.verl.estimator'
assert core_algos.get_policy_loss_fn('cw_grpo').__module__ == 'cw_plugin.hosts.verl.loss'
for v1 in (True, False): require_hooks(OmegaConf.create({'trainer': {'use_v1': v1}}))
"""


def test_the_built_wheel_registers_beside_verl_alone(tmp_path):
    """In a new environment that sees verl's packages but not this repository."""
    source = tmp_path / "source"
    shutil.copytree(ROOT / "cw_plugin", source / "cw_plugin")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    pip = [sys.executable, "-m", "pip", "-q"]
    build = [*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", tmp_path, "."]
    subprocess.run(build, cwd=source, check=True)
    (wheel,) = tmp_path.glob("cw_plugin-*.whl")
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    (site,) = (venv / "lib").glob("python*/site-packages")
    subprocess.run([*pip, "install", "--no-deps", "--target", site, wheel], check=True)
    # A path line of a .pth file: the packages beside verl become importable, their own .pth files are not read.
    (site / "verl.pth").write_text(f"{VERL.parent}\n")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("VERL_")}
    for arguments, said in (
        (("-c", REGISTERED + "import cw_plugin; print(cw_plugin.__file__)"), f"{site}/cw_plugin/__init__.py"),
        (("-m", "cw_plugin", "--version"), f"cw-plugin {wheel.name.split('-')[1]}"),
    ):
        command = [venv / "bin" / "python", "-I", *arguments]
        result = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert result.returncode == 0 and result.stdout.splitlines()[-1] == said, result.stderr
    assert (site / "cw_plugin" / "lab" / "reports" / "tokens.html").exists()


def test_what_verl_imports_in_each_process_is_light():
    result = python("-c", f"import sys, {MODULE}\nprint({{'torch', 'pyarrow'}} & sys.modules.keys())")
    assert result.stdout == "set()\n", result.stderr


def test_importing_the_package_changes_nothing_in_the_interpreter():
    code = """
import sys, wrapt
before = list(sys.meta_path)
import cw_plugin, cw_plugin.reweight
print(sys.meta_path == before, [name for name in sys.modules if name.startswith("cw_plugin.hosts")])
"""
    result = python("-c", code)
    assert result.stdout == "True []\n", result.stderr


def test_nothing_of_the_cpu_platform_is_active_unless_asked_for():
    """Nor is vLLM's plugin. That it is active if asked for, every run on a CPU shows."""
    code = """
import os, sys
from importlib.metadata import entry_points
import verl
(plugin,) = [e for e in entry_points(group='vllm.general_plugins') if e.name == 'verl_cpu']
plugin.load()()
print('verl_cpu' in sys.modules, 'verl_cpu.patches' in sys.modules, 'VERL_ENGINE_DEVICE' in os.environ)
"""
    assert python("-c", code).stdout.split()[-3:] == ["True", "False", "False"]


def test_a_plugin_that_fails_is_seen_and_imported_after_verl_it_registers():
    """verl logs the failure at debug level; ours says it on stderr, in one line."""
    failing = "import sys\nsys.modules['wrapt'] = None\nimport verl\nprint('verl went on')\n"
    later = f"del sys.modules['wrapt']\nfrom verl.trainer.ppo.v1 import trainer_base\nimport {MODULE}\n"
    result = python("-c", failing + later + REGISTERED)
    assert "verl went on" in result.stdout and result.returncode == 0, result.stderr
    (line,) = [line for line in result.stderr.splitlines() if "could not register with verl" in line]
    assert "ModuleNotFoundError" in line and "wrapt" in line


SEPARATE = "+rollout.nnodes=1"  # as one_step_off_policy has it


@pytest.mark.parametrize(
    ("settings", "place", "said"),
    [
        ((CW_GRPO, LEGACY), "trainer.ppo.ray_trainer.compute_data_metrics", " has no parameter batch; install verl"),
        ((CW_GRPO, SEPARATE), "experimental.separation.ray_trainer.compute_advantage", " has no parameter data or adv"),
        (
            (CW_GRPO,),
            f"trainer.ppo.v1.trainer_base.PPOTrainer.__init__.{hooks._MARK}",
            " is not hooked in this process",
        ),
        ((CW_GRPO, LEGACY), f"trainer.ppo.ray_trainer.RayPPOTrainer.__init__.{hooks._MARK}", " is not hooked in this "),
        ((GRPO, LOSS), f"utils.config.validate_config.{hooks._MARK}", " is not hooked in this process"),
    ],
)
def test_a_place_that_is_of_another_shape_or_not_hooked_is_said(monkeypatch, settings, place, said):
    monkeypatch.setattr(f"verl.{place}", lambda batches: batches)
    with pytest.raises(HostError, match=re.escape(place.removesuffix(f".{hooks._MARK}") + said)):
        validate(*settings)
    validate(GRPO, *[setting for setting in settings if setting in (LEGACY, SEPARATE)])  # a run without the method


def test_beside_a_verl_that_has_cw_grpo_the_plugin_stands_aside(tmp_path):
    """Also if it lacks a function that the plugin would hook."""
    code = """
from verl.trainer import main_ppo
from verl.trainer.ppo import core_algos

del main_ppo.run_ppo

core_algos.register_adv_est("cw_grpo")(core_algos.compute_grpo_outcome_advantage)  # as a verl that has it would

import cw_plugin.hosts.verl.register
from trainers import CW_GRPO, LOSS, legacy_trainer, v1_trainer, validate
from cw_plugin.hosts.verl.hooks import require_hooks

for make in (v1_trainer, legacy_trainer):  # the hooks are in place, and do nothing
    trainer = make(CW_GRPO)
    require_hooks(trainer.config)
    assert "fit" not in vars(trainer) and "_compute_advantage" not in vars(trainer)
validate(CW_GRPO, "+algorithm.cw_grpo.record_every=5")  # the plugin refuses nothing, not even what it would not know
for attempt in (lambda: validate(CW_GRPO, LOSS), lambda: core_algos.get_policy_loss_fn("cw_grpo")):
    try:
        attempt()
    except ValueError as error:
        print(error)
"""
    result = python("-c", code, cwd=tmp_path, VERL_USE_EXTERNAL_PLUGINS="none")
    assert result.returncode == 0, result.stderr[-6000:]
    assert "Unsupported loss mode: cw_grpo" in result.stdout
    assert result.stderr.count("is already registered") == 1


def test_fully_async_policy_is_checked_before_ray():
    """Its main calls main_ppo's run_ppo with a task runner of its own, and never validate_config."""
    config = composed(GRPO, LOSS, program="fully_async_policy")
    with pytest.raises(OptionsError, match=r"bypass_mode=False, or use adv_estimator=cw_grpo"):
        main_ppo.run_ppo(config, task_runner_class=None)


def test_a_configuration_without_the_keys_of_ppo_is_left_alone():
    """As the distillation recipe of verl-recipe has it: a RayPPOTrainer without an advantage estimator."""
    config = OmegaConf.create({"algorithm": {"use_kl_in_reward": False}, "actor_rollout_ref": {"actor": {}}})
    OmegaConf.set_struct(config, True)
    check_config(config)
    assert not (uses_estimator(config) or uses_loss(config) or uses_v1(config))
