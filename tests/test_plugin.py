"""How verl finds the plugin, what it refuses before Ray starts, and what it says when something does not fit."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import types
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import verl
from hydra import compose, initialize_config_dir, initialize_config_module
from omegaconf import OmegaConf
from verl.utils import config as verl_config

from cw_plugin.errors import HostError, OptionsError
from cw_plugin.verl_integration import hooks, run
from cw_plugin.verl_integration.options import check_config, estimator_and_loss, uses_v1

ROOT = Path(__file__).parent.parent
VALID = (
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1",
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=1",
    "actor_rollout_ref.actor.ppo_mini_batch_size=8",
    "data.train_batch_size=8",
)
MODULE = "cw_plugin.verl_integration.register"
REGISTERED = (
    "import verl\n"
    "from omegaconf import OmegaConf\n"
    "from verl.trainer.ppo import core_algos\n"
    "print(core_algos.get_adv_estimator_fn('cw_grpo').__module__)\n"
    "print(core_algos.get_policy_loss_fn('cw_grpo').__module__)\n"
    "from cw_plugin.verl_integration.hooks import require_hooks\n"
    "for v1 in (True, False): require_hooks(OmegaConf.create({'trainer': {'use_v1': v1}}))\n"
    "print('hooks in place')\n"
)


def python(code: str, *, executable: str = sys.executable, cwd: Path | None = None, **env: str):
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("VERL_", "PYTHONPATH"))}
    return subprocess.run(
        [executable, "-c", code], env=environment | env, cwd=cwd or ROOT, capture_output=True, text=True, timeout=300
    )


@pytest.mark.parametrize(
    "env",
    [
        {"VERL_USE_EXTERNAL_MODULES": MODULE},
        {"VERL_USE_EXTERNAL_MODULES": MODULE, "VERL_USE_EXTERNAL_PLUGINS": "none"},
    ],
    ids=["both", "external module alone"],
)
def test_importing_verl_registers(env):
    result = python(REGISTERED, **env)
    assert result.returncode == 0, result.stderr
    assert "cw_plugin.verl_integration.estimator\ncw_plugin.verl_integration.loss\nhooks in place" in result.stdout


def test_imported_after_verl_it_registers_too():
    result = python(
        f"from verl.trainer.ppo.v1 import trainer_base\nimport {MODULE}\n" + REGISTERED,
        VERL_USE_EXTERNAL_PLUGINS="none",
    )
    assert "hooks in place" in result.stdout, result.stderr


def test_the_built_wheel_registers_beside_verl_alone(tmp_path):
    """In a new environment that sees verl's packages but not this repository."""
    source = tmp_path / "source"
    shutil.copytree(ROOT, source, ignore=shutil.ignore_patterns(".git", ".venv", ".cache", "runs", "*.egg-info"))
    build = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(tmp_path), "."]
    subprocess.run(build, cwd=source, check=True, timeout=300)
    (wheel,) = tmp_path.glob("cw_plugin-*.whl")
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True, timeout=120)
    (site,) = (venv / "lib").glob("python*/site-packages")
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", site, wheel], check=True, timeout=120
    )
    # A path line of a .pth file: the packages beside verl become importable, their own .pth files are not read.
    import verl

    (site / "verl.pth").write_text(f"{Path(verl.__file__).parent.parent}\n")
    code = REGISTERED + "import cw_plugin; print(cw_plugin.__file__)\n"
    result = python(code, executable=str(venv / "bin" / "python"), cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert str(site) in result.stdout and "hooks in place" in result.stdout
    assert (site / "cw_plugin" / "reports" / "tokens.html").exists()
    version = subprocess.run([venv / "bin" / "python", "-m", "cw_plugin", "--version"], capture_output=True, text=True)
    assert version.stdout.split() == ["cw-plugin", wheel.name.split("-")[1]]


def test_importing_the_package_starts_nothing():
    modules = "cw_plugin, cw_plugin.weights, cw_plugin.reports.report, cw_plugin.cli"
    code = (
        f"import sys, wrapt\nbefore = list(sys.meta_path)\nimport {modules}\n"
        "print(sys.meta_path == before, *(m for m in sys.modules if m.startswith('cw_plugin.verl_integration')))\n"
        "import verl\n"
        "from verl.trainer.ppo import core_algos\nprint('cw_grpo' in core_algos.ADV_ESTIMATOR_REGISTRY)\n"
    )
    result = python(code, VERL_USE_EXTERNAL_PLUGINS="none")
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == ["True", "False"]


def test_tables_and_figures_need_neither_torch_nor_verl():
    code = (
        "import sys\n"
        "class NotInstalled:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name.split('.')[0] in ('vllm', 'ray', 'verl', 'torch', 'transformers'):\n"
        "            raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, NotInstalled())\n"
        "import cw_plugin.cli, cw_plugin.reports.report\n"
    )
    result = python(code)
    assert result.returncode == 0, result.stderr


def test_nothing_of_the_cpu_platform_is_active_unless_asked_for():
    code = (
        "import verl, sys\n"
        "from verl.utils import distributed\n"
        "from verl.workers.engine.fsdp import transformer_impl\n"
        "from verl.plugin.platform import platform_manager\n"
        "from torch.distributed.fsdp import CPUOffloadPolicy\n"
        "from megatron.core.tensor_parallel import random\n"
        "print(random._get_cuda_rng_state.__module__)\n"
        "from verl.trainer.ppo.v1.replay_buffer import ReplayBufferAsync\n"
        "sampler = {'max_off_policy_threshold': None, 'max_off_policy_strategy': 'drop', 'sampler_kwargs': {}}\n"
        "print(ReplayBufferAsync(trainer_mode='colocate_async', trainer_config={}, **sampler).poll_interval)\n"
        "print('cpu' in platform_manager.PlatformRegistry.registered_names(),\n"
        "      type(distributed.initialize_global_process_group_ray).__name__,\n"
        "      transformer_impl.CPUOffloadPolicy is CPUOffloadPolicy,\n"
        "      'verl_cpu.platform' in sys.modules)\n"
        "import os; print(os.environ.get('VERL_ENGINE_DEVICE'), os.environ.get('VLLM_CPU_KVCACHE_SPACE'))\n"
    )
    megatron = "megatron.core.tensor_parallel.random"
    assert python(code).stdout.split() == [megatron, "2.0", "False", "function", "True", "False", "None", "None"]
    active = python(code, VERL_PLATFORM="cpu").stdout.split()
    assert active == ["verl_cpu.megatron", "0.05", "True", "FunctionWrapper", "False", "True", "cuda", "1"]


def test_vllm_plugin_does_nothing_unless_asked_for():
    code = (
        "from importlib.metadata import entry_points\n"
        "(plugin,) = [e for e in entry_points(group='vllm.general_plugins') if e.name == 'verl_cpu']\n"
        "from vllm import _custom_ops\nbefore = _custom_ops._supports_onednn\nplugin.load()()\n"
        "print(before, _custom_ops._supports_onednn)\n"
    )
    before, after = python(code).stdout.split()[-2:]
    assert before == after
    assert python(code, VERL_PLATFORM="cpu").stdout.split()[-1] == "False"


def test_a_plugin_that_fails_is_seen():
    """verl logs the failure at debug level; ours says it on stderr, in one line."""
    result = python("import sys\nsys.modules['wrapt'] = None\nimport verl\nprint('verl went on')\n")
    assert "verl went on" in result.stdout
    lines = [line for line in result.stderr.splitlines() if "could not register with verl" in line]
    assert len(lines) == 1 and "ModuleNotFoundError" in lines[0] and "wrapt" in lines[0]


@pytest.mark.parametrize(
    "change", ["a function has another name", pytest.param("a module is gone", marks=pytest.mark.slow)]
)
def test_training_with_a_verl_of_another_shape_is_refused(tmp_path, change):
    """A changed copy of verl: an error that names what is missing, and no Ray."""
    import verl

    package = Path(verl.__file__).parent
    shutil.copytree(package, tmp_path / "verl", ignore=shutil.ignore_patterns("__pycache__"))
    v1 = tmp_path / "verl" / "trainer" / "ppo" / "v1"
    if change == "a module is gone":
        shutil.rmtree(v1)
        missing = r"there is no verl\.trainer\.ppo\.v1\.trainer_base"
    else:
        for path in (v1 / "trainer_base.py", v1 / "utils.py"):
            renamed = path.read_text().replace("compute_advantage_for_multi_trajectories", "compute_all_advantages")
            path.write_text(renamed)
        missing = "compute_advantage_for_multi_trajectories"
    arguments = ["algorithm.adv_estimator=cw_grpo", *VALID]
    code = (
        f"import sys, runpy; sys.argv[1:] = {arguments}; runpy.run_module('verl.trainer.main_ppo', run_name='__main__')"
    )
    result = python(code, cwd=tmp_path, PYTHONPATH=str(tmp_path))
    assert result.returncode != 0
    assert re.search(rf"HostError: cw_plugin does not fit verl 0\.9\.1: .*{missing}", result.stderr)
    assert "Started a local Ray instance" not in result.stderr


@pytest.mark.parametrize(
    ("source", "lacks"),
    [
        ("", "no function"),
        ("def compute_advantage_for_multi_trajectories(batch, adv_estimator): ...", "no batch_keys or data"),
    ],
)
def test_a_hook_without_its_place_says_what_is_lacking(source, lacks, monkeypatch, caplog):
    host = types.ModuleType("a_verl_of_another_shape")
    exec(source, vars(host))
    monkeypatch.setattr(hooks, "problems", [])
    (hook,) = [hook for hook in hooks.HOOKS if hook.function == "compute_advantage_for_multi_trajectories"]
    hooks._install(hook, host)
    assert lacks in hooks.problems[0] and lacks in caplog.text


def test_a_cw_grpo_that_verl_registered_itself_is_left_alone(caplog):
    registry = types.SimpleNamespace(
        ADV_ESTIMATOR_REGISTRY={"cw_grpo": print},
        POLICY_LOSS_REGISTRY={"cw_grpo": print},
        register_adv_est=None,
        register_policy_loss=None,
    )
    hooks._register_estimator_and_loss(registry)
    assert registry.ADV_ESTIMATOR_REGISTRY["cw_grpo"] is print
    assert caplog.text.count("already registered") == 2


BYPASS = "algorithm.rollout_correction.bypass_mode=True"
GEO_MEAN = "actor_rollout_ref.actor.policy_loss.loss_mode=geo_mean"
LOSS = "actor_rollout_ref.actor.policy_loss.loss_mode=cw_grpo"


def quickstart_overrides(method: str) -> list[str]:
    """What examples/quickstart_cpu.sh sets for a METHOD."""
    script = (ROOT / "examples" / "quickstart_cpu.sh").read_text()
    (assignment,) = re.findall(rf"^    {method}\) ALGORITHM=\(([^)]*)\)", script, re.MULTILINE)
    return assignment.split()


def validate(*overrides: str) -> None:
    """verl's own composition and its own validate_config, as main_ppo calls it."""
    with initialize_config_module("verl.trainer.config", version_base=None):
        config = compose("ppo_trainer", [*VALID, *overrides])
    verl_config.validate_config(config=config, use_reference_policy=False, use_critic=False)


@pytest.mark.parametrize(
    "overrides",
    [
        ["algorithm.adv_estimator=cw_grpo"],
        ["algorithm.adv_estimator=cw_grpo", "+algorithm.cw_grpo.scope=batch", "+algorithm.cw_grpo.kernel=none"],
        ["algorithm.adv_estimator=grpo", LOSS],
        quickstart_overrides("clip_cov"),
        ["algorithm.adv_estimator=grpo", "trainer.use_v1=False"],
        ["algorithm.adv_estimator=cw_grpo", "trainer.use_v1=False"],
        ["algorithm.adv_estimator=grpo", LOSS, "trainer.use_v1=False"],
        ["algorithm.adv_estimator=grpo", LOSS, BYPASS],
        ["algorithm.adv_estimator=grpo", GEO_MEAN],
        ["algorithm.adv_estimator=cw_grpo", "+algorithm.cw_grpo.kernel=none", GEO_MEAN],
    ],
)
def test_valid_settings_pass(overrides):
    validate(*overrides)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["algorithm.adv_estimator=cw_grpo", LOSS], "loss_mode=vanilla .* or algorithm.adv_estimator=grpo"),
        (["algorithm.adv_estimator=grpo", LOSS, BYPASS, "trainer.use_v1=False"], "bypass_mode=False"),
        # As the configurations of one_step_off_policy and fully_async_policy have it.
        (["algorithm.adv_estimator=cw_grpo", "+rollout.nnodes=1"], "start verl.trainer.main_ppo"),
        (["algorithm.adv_estimator=grpo", LOSS, "+async_training.partial_rollout=True"], "start verl.trainer.main_ppo"),
        (["algorithm.adv_estimator=cw_grpo", GEO_MEAN], "loss_mode=geo_mean averages .*loss_mode=vanilla"),
        (["algorithm.adv_estimator=cw_grpo", "+algorithm.cw_grpo.sigma=2"], "the options are scope, kernel"),
        (["algorithm.adv_estimator=cw_grpo", "+algorithm.cw_grpo.scope=rank"], "use group or batch"),
        (["algorithm.adv_estimator=cw_grpo", "+algorithm.cw_grpo=batch"], r"\+algorithm.cw_grpo.scope=\.\.\."),
        (["algorithm.adv_estimator=grpo", LOSS, "+algorithm.cw_grpo.scope=batch"], "do nothing for policy_loss"),
        (["algorithm.adv_estimator=grpo", "+algorithm.cw_grpo.kernel=none"], "do nothing for adv_estimator=grpo"),
    ],
)
def test_settings_that_cannot_work_are_refused_with_the_way_to_fix_them(overrides, message):
    with pytest.raises(OptionsError, match=message):
        validate(*overrides)


def test_fully_async_policy_is_refused_before_ray():
    """Its main calls main_ppo's run_ppo with a task runner of its own, and never validate_config."""
    from verl.trainer import main_ppo

    folder = Path(verl.__file__).parent / "experimental" / "fully_async_policy" / "config"
    with initialize_config_dir(str(folder), version_base=None):
        config = compose("fully_async_ppo_trainer", [*VALID, "algorithm.adv_estimator=grpo", LOSS])
    with pytest.raises(OptionsError, match=r"start verl\.trainer\.main_ppo"):
        main_ppo.run_ppo(config, task_runner_class=None)


def test_a_configuration_without_the_keys_of_ppo_is_left_alone():
    """As the distillation recipe of verl-recipe has it: a RayPPOTrainer without an advantage estimator."""
    config = OmegaConf.create({"algorithm": {"use_kl_in_reward": False}, "actor_rollout_ref": {"actor": {}}})
    OmegaConf.set_struct(config, True)
    check_config(config)
    assert estimator_and_loss(config) == (False, False) and not uses_v1(config)


@dataclass
class Trainer:
    config: Any
    global_steps: int


def test_a_step_in_which_every_weight_is_one_is_told_once(caplog):
    config = OmegaConf.create({"algorithm": {}, "trainer": {"default_local_dir": "unused"}})
    trainer = Trainer(config, 3)
    this_run = run.Run(trainer)
    for share in (0.5, 0.0, 0.0):
        this_run.complete({"actor/cw_grpo/signal_share": share})
    assert [record.getMessage().split(",")[0] for record in caplog.records] == ["cw_grpo: every weight was 1 in step 3"]


def test_missing_hooks_are_refused_by_validate_config(monkeypatch):
    monkeypatch.setattr(hooks, "_installed", lambda hook, module: False)
    with pytest.raises(HostError, match="Install a verl version"):
        validate("algorithm.adv_estimator=cw_grpo")


def test_two_trainings_on_one_machine_do_not_share_the_socket_of_the_weights():
    """Each has a Ray of its own, and both are its first job. That sender and receiver agree, every e2e test shows."""
    code = (
        "import os\n"
        "from verl.workers.rollout.vllm_rollout.utils import vLLMColocateWorkerExtension as Receiver\n"
        "receiver = object.__new__(Receiver); receiver.model_runner = None; receiver.local_rank = 0\n"
        "for os.environ['RAY_RAYLET_PID'] in ('7', '77'):\n"
        "    print(receiver._get_zmq_handle())"
    )
    names = python(code, VERL_RAY_JOB_ID="01000000", VERL_PLATFORM="cpu").stdout.split()[-2:]
    assert names[0] != names[1] and all("01000000" in name for name in names)
