"""CW-GRPO for ms-swift: its GRPOTrainer, trained on w~ A in place of A. examples/swift/plugin.py registers it.

A plugin cannot add flags to ms-swift's command line, so the options are environment variables: ``CW_GRPO_SCOPE``,
``CW_GRPO_KERNEL`` and ``CW_GRPO_RECORD_EVERY`` (:class:`cw_plugin.options.Options`). Records go to output_dir/tokens.
"""

import time
from typing import Any

import swift
import torch
from swift.rlhf_trainers import GRPOTrainer
from torch import Tensor
from torch.nn import functional

from cw_plugin.errors import HostError, OptionsError
from cw_plugin.method_callback import MethodCallback
from cw_plugin.options import Options
from cw_plugin.padding import joined
from cw_plugin.sharded import AccelerateRun, ProcessBatch, Sequences

TESTED = "4.6.0"


class CWGRPOTrainer(GRPOTrainer):
    """ms-swift's GRPOTrainer whose advantages, (B, T) there, are multiplied by the paper's weights.

    Weights are computed once for a generation batch, over whole prompt groups, from ms-swift's own
    ``old_per_token_logps``. Sequence parallelism, a teacher and a changing number of responses are refused. So are,
    unless the kernel is none, the Liger loss, the loss real, and importance_sampling_level sequence with another loss
    than cispo: one ratio for a whole response would give each of its tokens their mean weight.

    Raises:
        OptionsError: an unknown value, or a setting under which the loss would not keep the weights.
        HostError: ms-swift lacks the method in which the weights are applied.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        options = Options.from_environment()
        if not hasattr(GRPOTrainer, "_postprocess_batch"):
            raise HostError(
                f"GRPOTrainer of ms-swift {swift.__version__} has no _postprocess_batch, where CW-GRPO applies its "
                "weights",
                fix=f"install ms-swift {TESTED}",
            )
        if options.kernel != "none":
            check_loss(kwargs["args"])
        super().__init__(*args, **kwargs)
        self._cw_run = AccelerateRun(self, options)
        self._cw_method = MethodCallback(options)
        self.add_callback(self._cw_method)
        size = self.template.sequence_parallel_size
        if size > 1:
            raise OptionsError(f"sequence_parallel_size={size} has not been tested with CW-GRPO", fix="set it to 1")

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> Any:
        """Train as GRPOTrainer does, but do not resume another method's checkpoint (OptionsError)."""
        self._cw_method.resumes = resume_from_checkpoint
        return super().train(resume_from_checkpoint, *args, **kwargs)

    def _postprocess_batch(self, samples: list[Any], batch_encoded_inputs: list[dict[str, Any]]) -> None:
        super()._postprocess_batch(samples, batch_encoded_inputs)
        if not self.model.training:
            return
        started = time.perf_counter()
        batches = [encoded["grpo_batch"] for encoded in batch_encoded_inputs]  # in the order of the rows
        if self.dynamic_num_samples or any(batch.teacher_per_token_logps is not None for batch in batches):
            raise OptionsError(
                "CW-GRPO reweights one advantage per response, in groups of num_generations responses",
                fix="train without a teacher, and without a scheduler that changes the number of responses",
            )
        mask = joined([batch.completion_mask.long() for batch in batches])
        if self.overlong_filter:  # the loss will leave them out
            mask = mask * ~torch.cat([batch.truncated_mask for batch in batches])[:, None]
        batch_of_process = ProcessBatch(
            log_probs=joined([batch.old_per_token_logps for batch in batches]),
            # The same for all tokens of a response.
            advantages=torch.cat([batch.advantages[:, 0] for batch in batches]),
            response_mask=mask,
        )
        weighted = self._cw_run.reweight(batch_of_process, self._cw_sequences(batch_encoded_inputs), started)
        if weighted is None:
            return
        parts = torch.split(weighted, [len(batch.advantages) for batch in batches])
        for batch, part in zip(batches, parts, strict=True):
            batch.advantages = part[:, : batch.advantages.shape[1]]

    def _cw_sequences(self, batch_encoded_inputs: list[dict[str, Any]]) -> Sequences | None:
        """What a record shows of the batch; None with padding_free, where a micro-batch is one row."""
        if self.template.padding_free:
            return None
        return Sequences(
            prompts=joined([encoded["model_inputs"]["input_ids"] for encoded in batch_encoded_inputs]),
            prompt_mask=joined([_prompt_mask(encoded) for encoded in batch_encoded_inputs]),
            responses=joined([_responses(encoded) for encoded in batch_encoded_inputs]),
            rewards=(self._rewards_per_func * self.reward_weights).nansum(-1),
            tokenizer=self.template.tokenizer,
        )


def check_loss(args: Any) -> None:
    """Raise OptionsError if the loss that ms-swift's arguments choose takes one advantage for a whole response."""
    if args.importance_sampling_level == "sequence" and args.loss_type != "cispo":
        raise _loses_the_weights("importance_sampling_level", args.importance_sampling_level)
    if args.loss_type == "real":
        raise _loses_the_weights("loss_type", args.loss_type)
    if args.use_liger_kernel:
        raise _loses_the_weights("use_liger_kernel", args.use_liger_kernel)


def _loses_the_weights(name: str, value: object) -> OptionsError:
    return OptionsError(
        f"{name}={value!r} takes one advantage for a whole response, so the loss would lose the weights",
        fix="leave it at its default",
    )


def _responses(encoded: dict[str, Any]) -> Tensor:
    """Token ids of the columns that log-probs and mask have."""
    ids: Tensor = encoded["model_inputs"]["input_ids"]
    return ids[:, -encoded["grpo_batch"].completion_mask.shape[1] :]


def _prompt_mask(encoded: dict[str, Any]) -> Tensor:
    """Whether a token of the input stands before the response."""
    inputs, response = encoded["model_inputs"], encoded["grpo_batch"].completion_mask
    before = inputs["input_ids"].shape[1] - response.shape[1]  # columns of the prompt alone
    has_begun = functional.pad(response.long(), (before, 0)).cumsum(-1) > 0
    attended: Tensor = inputs["attention_mask"].bool()
    return attended & ~has_begun
