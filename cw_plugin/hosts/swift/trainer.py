"""The trainer: ms-swift's GRPOTrainer, trained on w~ A in place of A."""

from collections.abc import Sequence
from functools import partial
from typing import Any, Protocol, TypedDict

import torch
from swift.rlhf_trainers import GRPOTrainer
from torch import Tensor
from torch.nn import functional

from cw_plugin.batch import Batch, joined, of_responses
from cw_plugin.errors import OptionsError
from cw_plugin.hosts.host import SWIFT
from cw_plugin.hosts.swift.needs import NEEDS
from cw_plugin.hosts.transformers_trainer import ReweightingTrainer, check_loss, training_arguments
from cw_plugin.options import Options

# The constructor's arguments with which a teacher's log-probs change the advantages.
TEACHERS = ("teacher_model", "teacher_model_server", "teacher_use_disable_adapter")
NO_TEACHER = "gives each token an advantage of its own, and CW-GRPO reweights one for each response"


class Responses(Protocol):
    """What is used of ms-swift's GRPOBatch: the responses of a micro-batch. Its tensors are (rows, time)."""

    advantages: Tensor
    completion_mask: Tensor
    truncated_mask: Tensor  # (rows,)
    old_per_token_logps: Tensor
    teacher_per_token_logps: Tensor | None


class MicroBatch(TypedDict):
    """What ms-swift makes of a micro-batch; its prompts and responses lie side by side in ``input_ids``."""

    grpo_batch: Responses
    model_inputs: dict[str, Tensor]


class CWGRPOTrainer(ReweightingTrainer, GRPOTrainer):
    """ms-swift's GRPOTrainer whose advantages, (B, T) there, are multiplied by the weights.

    Weights are computed once for a generation batch, over whole prompt groups, from ms-swift's own
    ``old_per_token_logps``. Sequence parallelism, a teacher and a changing number of responses are refused. So are,
    unless the weights are none, the Liger loss, the loss real, and importance_sampling_level sequence with another loss
    than cispo: one ratio for a whole response would give each of its tokens their mean weight. sequence_token does not.

    Raises:
        OptionsError: an unknown value, or a setting under which the loss would not keep the weights.
        HostError: ms-swift lacks the method in which the weights are applied.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        options = Options.from_environment()
        SWIFT.require(*NEEDS)
        if options.weights != "none":
            check_loss(training_arguments(args, kwargs), level="sequence_token, which has the same ratio")
        for name in TEACHERS:
            if kwargs.get(name):
                raise OptionsError(f"{name} {NO_TEACHER}", fix="train without a teacher")
        size = kwargs["template"].sequence_parallel_size
        if size > 1:
            raise OptionsError(
                f"with sequence_parallel_size={size}, {size} processes hold the same responses, and CW-GRPO would "
                "count each of these several times",
                fix="set it to 1",
            )
        super().__init__(*args, **kwargs)
        self._cw_begin(options)

    def _postprocess_batch(self, samples: list[object], batch_encoded_inputs: list[MicroBatch]) -> None:
        """Override of ms-swift's, after which the advantages are w~ A in training."""
        super()._postprocess_batch(samples, batch_encoded_inputs)
        if not self.model.training:
            return
        batches = [encoded["grpo_batch"] for encoded in batch_encoded_inputs]  # in the order of the rows
        if any(batch.teacher_per_token_logps is not None for batch in batches):
            raise OptionsError(f"a teacher {NO_TEACHER}", fix="train without the column teacher_prompt")
        if self.dynamic_num_samples:
            raise OptionsError(
                "the scheduler changes the number of responses, so there are no groups of num_generations responses",
                fix="train without such a scheduler",
            )
        weighted = self._cw_reweight(self._cw_batch(batch_encoded_inputs))
        if weighted is None:
            return
        parts = torch.split(weighted, [len(batch.advantages) for batch in batches])
        for batch, part in zip(batches, parts, strict=True):
            width = batch.advantages.shape[1]  # the micro-batch's own; ``weighted`` is padded to the widest
            batch.advantages = part[:, :width]

    def _cw_batch(self, batch_encoded_inputs: list[MicroBatch]) -> Batch:
        """The rows of this process in a generation batch of ms-swift, which holds them in micro-batches."""
        batches = [encoded["grpo_batch"] for encoded in batch_encoded_inputs]
        mask = joined([batch.completion_mask.long() for batch in batches])
        advantages = of_responses(joined([batch.advantages for batch in batches]), mask)
        if self.overlong_filter:  # the loss will leave them out
            mask = mask * ~torch.cat([batch.truncated_mask for batch in batches])[:, None]
        rows = len(mask)
        entropies = None
        if self._cw_run.weighting.needs_entropies:
            entropies = joined([self._cw_entropies(batch.old_per_token_logps) for batch in batches])
        rewards = (self._rewards_per_func * self.reward_weights).nansum(-1)  # of all processes
        return Batch(
            log_probs=joined([batch.old_per_token_logps for batch in batches]),
            advantages=advantages,
            response_mask=mask,
            group=self._cw_groups(rows),
            rewards=rewards[self._cw_own_rows(rows)],
            # With padding_free, a micro-batch is one row.
            read_sequences=None if self.template.padding_free else partial(_sequences, batch_encoded_inputs),
            tokenizer=self.template.tokenizer,
            entropies=entropies,
        )


def _sequences(batch_encoded_inputs: list[MicroBatch], rows: Sequence[int]) -> list[tuple[Tensor, Tensor]]:
    """Token ids of prompt and response for some rows of this process."""
    prompts = [prompt for encoded in batch_encoded_inputs for prompt in _prompts(encoded)]
    responses = joined([_responses(encoded) for encoded in batch_encoded_inputs]).cpu()
    return [(prompts[row], responses[row]) for row in rows]


def _responses(encoded: MicroBatch) -> Tensor:
    """Token ids of the columns that log-probs and mask have."""
    ids = encoded["model_inputs"]["input_ids"]
    return ids[:, -encoded["grpo_batch"].completion_mask.shape[1] :]


def _prompts(encoded: MicroBatch) -> list[Tensor]:
    """Token ids before the response, of each row of a micro-batch."""
    inputs, response = encoded["model_inputs"], encoded["grpo_batch"].completion_mask
    columns_of_prompt_alone = inputs["input_ids"].shape[1] - response.shape[1]
    has_begun = functional.pad(response.long(), (columns_of_prompt_alone, 0)).cumsum(-1) > 0
    is_prompt = inputs["attention_mask"].bool() & ~has_begun
    return [ids[of_prompt].cpu() for ids, of_prompt in zip(inputs["input_ids"], is_prompt, strict=True)]
