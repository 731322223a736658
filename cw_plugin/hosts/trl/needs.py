"""What the plugin calls, extends or wraps in TRL.

What changes most often from release to release: who computes advantages, the parameters of
``_get_per_token_logps_and_entropies``, through which images go, ``requires-python``, and whether TRL trains on a CPU
(1.15 does not). Axolotl pins a release of TRL, and chooses the trainer in ``_get_trainer_cls`` of core/builders/rl.py.
"""

from cw_plugin.hosts.host import Need

_MODULE = "trl.trainer.grpo_trainer"  # with TRL's own trainer, also where ``trl`` has ours in its place (grpo.py)

NEEDS = (
    Need(_MODULE, "GRPOTrainer._generate_and_score_completions", ("inputs",)),
    Need(
        _MODULE,
        "GRPOTrainer._get_per_token_logps_and_entropies",
        ("model", "input_ids", "attention_mask", "logits_to_keep", "batch_size", "compute_entropy"),
    ),
    Need(_MODULE, "GRPOTrainer._calculate_rewards"),
    # It tells one advantage per response from one per token. Without this line, advantages (B, T) would broadcast to
    # (B, B, T), and train on the weights of other responses.
    Need(_MODULE, "GRPOTrainer._compute_loss", ("inputs",), line="if advantages.dim() == 1:"),
    # Packages that patch TRL for speed (Unsloth) replace it, and lay the tokens out in another way.
    Need(_MODULE, "GRPOTrainer.compute_loss", line="self._compute_loss("),
)

# Of ``trl grpo``: what starts its script, and where that makes the trainer.
COMMAND_LINE = (
    Need("trl.cli.accelerate_launcher", "launch_training_script", line="[Any], None] = launch_command,"),
    Need("trl.scripts.grpo", "main", line="trainer = GRPOTrainer("),
)
