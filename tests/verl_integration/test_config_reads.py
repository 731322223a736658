"""config_reads.py itself, on verl's own configuration. test_e2e.py trains the recipes with it."""

from config_reads import unread
from interpreter import ROOT, python

READ = """
import sys
from pathlib import Path
from omegaconf import OmegaConf
from verl.utils.config import omega_conf_to_dataclass
from cw_plugin.verl_integration.compose import compose

folder, *overrides = sys.argv[1:]
config = compose(overrides)
OmegaConf.save(config, Path(folder, "config.yaml"))
OmegaConf.save(OmegaConf.create(overrides), Path(folder, "overrides.yaml"))
OmegaConf.to_container(config, resolve=True)  # as main_ppo, to print it
OmegaConf.resolve(config)
actor, ref = config.actor_rollout_ref.actor, config.actor_rollout_ref.ref

config.trainer.save_freq, config.data["seed"], config.trainer.get("test_freq"), actor.use_dynamic_bsz
OmegaConf.select(config, "algorithm.adv_estimator")
OmegaConf.set_struct(config, False)
ref.pop("log_prob_max_token_len_per_gpu")
model, engine = omega_conf_to_dataclass(config.actor_rollout_ref.model), omega_conf_to_dataclass(actor).engine
engine.param_offload, engine["optimizer_offload"], engine.entropy_from_logits_with_chunking
engine.get("override_transformer_config").get("recompute_granularity")
"""


def test_a_setting_counts_when_code_reads_its_value_and_not_when_it_is_copied_or_checked(tmp_path):
    """Three are ignored: one that verl does not know, one that its Megatron engine does not read, and the reference
    model's offloading, although the actor's is read."""
    engine = "actor_rollout_ref.actor.megatron"
    read = {
        "model_engine": "megatron",
        "actor_rollout_ref.model.path": ROOT / "examples" / "cpu" / "model",
        "+actor_rollout_ref.model.override_config.attn_implementation": "sdpa",
        "trainer.save_freq": 50,
        "trainer.test_freq": 2,
        "data.seed": 1,
        "algorithm.adv_estimator": "cw_grpo",
        "actor_rollout_ref.ref.log_prob_max_token_len_per_gpu": 1000,
        "actor_rollout_ref.actor.entropy_from_logits_with_chunking": True,  # which the engine's section copies
        f"{engine}.param_offload": True,
        f"{engine}.optimizer_offload": True,
        f"{engine}.override_transformer_config.recompute_granularity": "full",
        "actor_rollout_ref.actor.use_dynamic_bsz": True,
    }
    ignored = {
        "+trainer.nobody_reads_this": 1,
        "actor_rollout_ref.model.enable_gradient_checkpointing": True,
        "actor_rollout_ref.ref.megatron.param_offload": True,
    }
    overrides = [f"{key}={value}" for key, value in (read | ignored).items()]
    folder = tmp_path / "hydra" / ".hydra"
    folder.mkdir(parents=True)
    probe = {"VERL_USE_EXTERNAL_MODULES": "config_reads", "E2E_PROBE_DIR": str(tmp_path / "probe")}
    result = python("-c", READ, folder, *overrides, **probe)
    assert result.returncode == 0, result.stderr[-3000:]
    assert unread(tmp_path) == [key.lstrip("+") for key in ignored]
