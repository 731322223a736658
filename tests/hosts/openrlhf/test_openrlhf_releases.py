"""The tests of OpenRLHF under the last release of each minor one that fits, and one release that does not fit.

Each release lies in a folder of its own, over the packages of the environment, with what it imports besides: the real
DeepSpeed, and the stand-in for flash-attn of examples/openrlhf/cpu.
"""

import pytest

pytest.importorskip("verl")

import json

from host_packages import host_folders
from interpreter import python, run_tests

from cw_plugin.errors import HostError
from cw_plugin.hosts.host import OPENRLHF
from cw_plugin.hosts.openrlhf import install


@pytest.mark.parametrize(
    "version", [*(pytest.param(v, marks=pytest.mark.slow) for v in (OPENRLHF.oldest, "0.10.4")), OPENRLHF.newest]
)
def test_a_release_of_openrlhf_passes_the_tests(version):
    run_tests("hosts/openrlhf", f"--ignore={__file__}", path=host_folders("openrlhf", version), HF_HUB_OFFLINE="1")


@pytest.mark.slow
def test_a_release_of_another_shape_is_refused():
    code = """
from cw_plugin.hosts import openrlhf
openrlhf.install()
import openrlhf.trainer.ppo_utils.experience_maker
"""
    result = python("-c", code, path=host_folders("openrlhf", "0.8.11"))
    assert result.returncode == 1
    error = result.stderr.strip().splitlines()[-1]
    assert "does not fit OpenRLHF 0.8.11" in error and "compute_advantages_and_returns" in error


def test_the_launcher_refuses_an_unknown_option_before_anything_starts():
    result = python("-m", "cw_plugin.hosts.openrlhf", path=host_folders("openrlhf"), CW_GRPO_WEIGHT="none")
    assert result.returncode == 1 and result.stderr.startswith("cw_grpo: CW_GRPO_WEIGHT is not an option")


GOES_ON = "from openrlhf.utils.deepspeed import DeepspeedStrategy as S; S.print = lambda *_: exit('cw_grpo: goes on')"


@pytest.mark.parametrize(
    ("before", "flags", "said"),
    [
        ("pass", ("--algo.kl.init_coef", "0.01"), "--algo.kl.init_coef 0.01 puts a KL penalty into the reward"),
        ("pass", ("--algo.kl.init_coef", "0"), "has checkpoints that were trained with scope='batch', and this run"),
        (GOES_ON, ("--algo.kl.init_coef", "0"), "goes on"),  # of another method, which was killed before a checkpoint
        ("del ppo_trainer.BasePPOTrainer.train_step", (), "there is no openrlhf.trainer.ppo_trainer.BasePPOTrainer.t"),
    ],
)
def test_the_launcher_refuses_what_cannot_train_in_a_sentence(tmp_path, before, flags, said):
    if before != GOES_ON:
        (tmp_path / "_actor").mkdir()
    (tmp_path / "cw_grpo.json").write_text('{"scope": "batch", "weights": "gaussian"}')
    code = f"""
import ray
from openrlhf.trainer import ppo_trainer
from cw_plugin.hosts.openrlhf import __main__ as program
ray.is_initialized = lambda: True
{before}
program.main()
"""
    flags = ("--reward.remote_url", "none.py", "--ckpt.path", tmp_path, "--algo.advantage.estimator", "rloo", *flags)
    flags = ("--rollout.n_samples_per_prompt", "2", *flags)
    result = python("-c", code, *flags, path=host_folders("openrlhf"))
    last = result.stderr.splitlines()[-1]
    assert result.returncode == 1 and last.startswith("cw_grpo: ") and said in last


def test_rays_workers_get_the_hook_and_the_options_or_the_launcher_fails():
    """A Ray of its own, started as train_ppo_ray does it; then one that runs another hook in the place of ours.

    The variable of a job is the one that ``ray job submit`` sets for the job's program.
    """
    job = {"runtime_env": {"worker_process_setup_hook": "os.instal", "env_vars": {"CW_GRPO_WEIGHTS": "ar"}}}
    code = """
import runpy
import ray
from cw_plugin.hosts.openrlhf import __main__ as program
from cw_plugin.hosts.ray_workers import reach_workers
def train_ppo_ray(*_, **__):
    of_program = {"env_vars": {"NCCL_DEBUG": "WARN", "CW_GRPO_WEIGHTS": "stare"}}
    context = ray.init("local", num_cpus=1, include_dashboard=False, namespace="mine", runtime_env=of_program)
    print(sorted(ray.get_runtime_context().runtime_env["env_vars"].items()))
    print(ray.get_runtime_context().namespace, type(context).__name__)
    ray.shutdown()
    of_ray = ray.init.__wrapped__
    def with_another_hook(*args, runtime_env, **kwargs):
        return of_ray(*args, runtime_env=runtime_env | {"worker_process_setup_hook": "os.getpid"}, **kwargs)
    ray.init = with_another_hook
    reach_workers(program.install)
    ray.init("local", num_cpus=1, include_dashboard=False)
runpy.run_module = train_ppo_ray
program.main()
"""
    variables = {"CW_GRPO_WEIGHTS": "none", "RAY_JOB_CONFIG_JSON_ENV_VAR": json.dumps(job), "RAY_ADDRESS": "10.0.0.1:1"}
    result = python("-c", code, path=host_folders("openrlhf"), **variables)
    assert result.returncode == 1
    said = "cw_grpo: Ray's workers did not run cw_plugin.hosts.openrlhf.hook.install, so they would train plain GRPO"
    assert said in result.stderr
    assert "[('CW_GRPO_WEIGHTS', 'none'), ('NCCL_DEBUG', 'WARN'), " in result.stdout  # before a variable of Ray's own
    assert "mine RayContext" in result.stdout


def test_an_environment_without_openrlhf_is_refused(tmp_path, monkeypatch):
    for _ in range(2):
        result = python("-m", "cw_plugin.hosts.openrlhf", cwd=tmp_path)
        assert result.returncode == 1 and "has no openrlhf; install openrlhf 0" in result.stderr
        assert len(result.stderr.splitlines()) == 1
        with pytest.raises(HostError, match=r"there is no openrlhf\.trainer\..* install openrlhf 0"):
            install()
        (tmp_path / "openrlhf").mkdir(exist_ok=True)  # which Python takes for a package
        monkeypatch.syspath_prepend(str(tmp_path))
