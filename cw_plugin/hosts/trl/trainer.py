"""The trainer: TRL's GRPOTrainer, trained on w~ A in place of A."""

import inspect
import textwrap
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from trl import GRPOTrainer

from cw_plugin.batch import Batch
from cw_plugin.errors import HostError
from cw_plugin.hosts.host import TRL
from cw_plugin.hosts.transformers_trainer import ReweightingTrainer, check_loss, training_arguments
from cw_plugin.hosts.trl.config import ArgumentsFile, options
from cw_plugin.hosts.trl.needs import NEEDS


class CWGRPOTrainer(ReweightingTrainer, GRPOTrainer):
    """GRPOTrainer whose advantages are multiplied by the weights. It takes the arguments of GRPOTrainer.

    Weights are computed once for a generation batch, over whole prompt groups, before TRL shuffles and splits it. So
    they do not depend on the number of processes, gradient accumulation, ``steps_per_generation``, ``num_iterations``
    or padding. Evaluation is TRL's.

    Log-probs are TRL's ``old_per_token_logps``, with dropout if the model has active dropout. If TRL does not compute
    them (one update per batch, without vLLM or its importance sampling), one more forward pass does, without dropout.

    Tokens without a gradient take no part: those of tools, of completions that ``mask_truncated_completions`` leaves
    out, and of completions that no reward function scores, if TRL does not train on these.

    Args:
        args: a :class:`CWGRPOConfig`; or another GRPOConfig, whose options are those of the environment.

    Raises:
        OptionsError: a setting under which the loss would not keep the weights.
        HostError: TRL lacks what the weights need.
    """

    _tag_names = ["trl", "grpo", "cw-grpo"]  # noqa: RUF012
    _name = "CW-GRPO"
    _paper = {  # noqa: RUF012
        "title": "Taming Extreme Tokens: Covariance-Aware GRPO with Gaussian-Kernel Advantage Reweighting",
        "id": "2605.11538",
        "citation": textwrap.dedent("""\
            @inproceedings{wang2026taming,
                title     = {{Taming Extreme Tokens: Covariance-Aware GRPO with Gaussian-Kernel Advantage Reweighting}},
                author    = {Cheng Wang and Qin Liu and Wenxuan Zhou and Muhao Chen},
                booktitle = {Proceedings of the 64th Annual Meeting of the Association for Computational Linguistics},
                pages     = {540--546},
                year      = 2026,
                eprint    = {arXiv:2605.11538},
            }"""),
    }

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        TRL.require(*NEEDS)
        config = training_arguments(args, kwargs)
        cw_options = options(config)
        if cw_options.weights != "gaussian":  # the model card names what is trained
            self._tag_names, self._name, self._paper = GRPOTrainer._tag_names, GRPOTrainer._name, GRPOTrainer._paper
        if cw_options.weights not in ("gaussian", "none"):
            self._name = f"GRPO with {cw_options.weights} token weights"
        if cw_options.weights != "none" and config is not None:
            check_loss(config, has_ligers_loss=hasattr(self, "compute_liger_loss"))
        super().__init__(*args, **kwargs)
        self._cw_begin(cw_options)
        self.add_callback(ArgumentsFile(self._cw_run))

    def _generate_and_score_completions(self, inputs: list[dict[str, object]]) -> dict[str, Tensor]:
        """Override of TRL's: the batch that it makes, with w~ A in place of A in training."""
        training = self.model.training
        batch: dict[str, Tensor] = super()._generate_and_score_completions(inputs)
        if training:
            if batch["advantages"].dim() != 1:
                raise HostError(
                    f"the advantages have the shape {tuple(batch['advantages'].shape)}, and CW-GRPO reweights one for "
                    "each response: something else has changed GRPOTrainer._generate_and_score_completions",
                    fix="remove that",
                )
            weighted = self._cw_reweight(self._cw_batch(batch))
            if weighted is not None:
                batch["advantages"] = weighted
        return batch

    def _compute_loss(self, model: torch.nn.Module, inputs: dict[str, Tensor]) -> Tensor:
        """Override of TRL's: a HostError in place of a loss on plain advantages."""
        if self.model.training and self._cw_run.options.weights != "none" and inputs["advantages"].dim() == 1:
            raise HostError(
                f"{type(self).__name__} trains on advantages that do not come from "
                "CWGRPOTrainer._generate_and_score_completions, so it would train plain GRPO",
                fix="turn off what computes them elsewhere, such as asynchronous generation",
            )
        loss: Tensor = super()._compute_loss(model, inputs)
        return loss

    def _cw_batch(self, batch: dict[str, Tensor]) -> Batch:
        """The rows of this process in a generation batch of TRL."""
        log_probs, entropies = batch.get("old_per_token_logps"), None
        if log_probs is None:
            log_probs, entropies = self._cw_forward(batch)
        elif self._cw_run.weighting.needs_entropies:
            entropies = self._cw_entropies(log_probs)
        mask = batch["completion_mask"] * batch.get("tool_mask", 1)
        rows = len(mask)
        rewards = self._cw_rewards[self._cw_own_rows(rows)]
        # Earlier releases, such as 0.29, train on responses without a score as on a reward of 0.
        is_left_out = rewards.isnan() & (batch["advantages"] == 0)
        return Batch(
            log_probs=log_probs,
            advantages=batch["advantages"],
            response_mask=mask * ~is_left_out[:, None],
            group=self._cw_groups(rows),
            rewards=rewards,
            read_sequences=partial(_sequences, batch),
            tokenizer=self.processing_class,
            entropies=entropies,
        )

    def _calculate_rewards(self, *args: object, **kwargs: object) -> Float[Tensor, "rows functions"]:
        """Override of TRL's, which keeps the total reward of each response."""
        rewards: Tensor = super()._calculate_rewards(*args, **kwargs)  # of all processes; NaN where there is no score
        total = (rewards * self.reward_weights.to(rewards.device)).nansum(-1)
        self._cw_rewards: Tensor = total.masked_fill(rewards.isnan().all(-1), torch.nan)
        return rewards

    @torch.no_grad()
    def _cw_forward(
        self, batch: dict[str, Tensor]
    ) -> tuple[Float[Tensor, "rows time"], Float[Tensor, "rows time"] | None]:
        """Log-probs of the completions, and entropies if the weighting needs them, under the current policy.

        TRL's forward pass computes them in micro-batches.
        """
        forward = self._cw_forward_of_host()
        # What TRL's loss passes beside ids and masks: images and token types, whose names differ between releases.
        named = getattr(self, "_full_logits_logps", forward)  # TRL 1.14's forward passes all on to this
        model_inputs = {name: batch[name] for name in inspect.signature(named).parameters if name in batch}
        self.model.eval()  # dropout would draw random numbers that GRPOTrainer does not draw
        try:
            log_probs: Tensor
            entropies: Tensor | None
            log_probs, entropies, *_ = forward(
                self.model,
                torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1),
                torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1),
                batch["completion_ids"].size(1),
                batch_size=self.args.per_device_train_batch_size,
                compute_entropy=self._cw_run.weighting.needs_entropies,
                **model_inputs,
            )
        finally:
            self.model.train()
        return log_probs, entropies


def _sequences(batch: dict[str, Tensor], rows: Sequence[int]) -> list[tuple[Tensor, Tensor]]:
    """Token ids of prompt and completion for some rows of this process."""
    prompts, mask, completions = (batch[name].cpu() for name in ("prompt_ids", "prompt_mask", "completion_ids"))
    return [(prompts[row][mask[row] != 0], completions[row]) for row in rows]
