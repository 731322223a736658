"""CW-GRPO for ms-swift: its GRPOTrainer, trained on w~ A in place of A. examples/swift/plugin.py registers it.

A plugin cannot add flags to ms-swift's command line, so the options are environment variables: ``CW_GRPO_SCOPE``,
``CW_GRPO_KERNEL`` and ``CW_GRPO_RECORD_EVERY`` (:class:`cw_plugin.options.Options`). Records go to output_dir/tokens.
"""

import time
from pathlib import Path
from typing import Any

import swift
import torch
import torch.nn.functional as F
from swift.rlhf_trainers import GRPOTrainer

from cw_plugin.accelerate_batches import joined, log, record, reweight_over_processes
from cw_plugin.errors import HostError, OptionsError
from cw_plugin.method_callback import MethodCallback
from cw_plugin.options import Options
from cw_plugin.records.write import TokenFiles

TESTED = "4.6.0"


class CWGRPOTrainer(GRPOTrainer):
    """ms-swift's GRPOTrainer whose advantages, (B, T) there, are multiplied by the paper's weights.

    Weights are computed once for a generation batch, over whole prompt groups, from ms-swift's own
    ``old_per_token_logps``. Refused are the Liger loss, ratios for a whole response (importance_sampling_level
    sequence), the losses real and fipo (these unless the kernel is none), sequence parallelism, a teacher, and a
    changing number of responses.

    Raises:
        OptionsError: an unknown value, or a setting under which the loss would not keep the weights.
        HostError: ms-swift lacks the method in which the weights are applied.
    """

    def __init__(self, *given: Any, **kwargs: Any) -> None:
        args = kwargs["args"]
        self._cw_options = Options.from_environment()
        if not hasattr(GRPOTrainer, "_postprocess_batch"):
            raise HostError(
                f"GRPOTrainer of ms-swift {swift.__version__} has no _postprocess_batch, where CW-GRPO applies its "
                f"weights; install ms-swift {TESTED}"
            )
        refused = {
            "importance_sampling_level": args.importance_sampling_level == "sequence",
            "loss_type": args.loss_type in ("real", "fipo"),
            "use_liger_kernel": args.use_liger_kernel,
        }
        for name in (name for name, there in refused.items() if there and self._cw_options.kernel != "none"):
            raise OptionsError(
                f"{name}={getattr(args, name)!r} takes one advantage for a whole response, so the loss would lose the "
                "weights; leave it at its default"
            )
        super().__init__(*given, **kwargs)
        self._cw_files = TokenFiles(Path(self.args.output_dir), self._cw_options)
        self.add_callback(MethodCallback(self._cw_options))
        if self.template.sequence_parallel_size > 1:
            given = self.template.sequence_parallel_size
            raise OptionsError(f"sequence_parallel_size={given} has not been tested with CW-GRPO; set it to 1")

    def _postprocess_batch(self, samples: list[Any], batch_encoded_inputs: list[dict[str, Any]]) -> None:
        super()._postprocess_batch(samples, batch_encoded_inputs)
        if not self.model.training:
            return
        started = time.perf_counter()
        batches = [encoded["grpo_batch"] for encoded in batch_encoded_inputs]  # in the order of the rows
        if self.dynamic_num_samples or any(batch.teacher_per_token_logps is not None for batch in batches):
            raise OptionsError(
                "CW-GRPO reweights one advantage per response, in groups of num_generations responses; train without a "
                "teacher, and without a scheduler that changes the number of responses"
            )
        mask = joined([batch.completion_mask.long() for batch in batches])
        if self.overlong_filter:  # the loss will leave them out
            mask = mask * ~torch.cat([batch.truncated_mask for batch in batches])[:, None]
        log_probs = joined([batch.old_per_token_logps for batch in batches])
        advantages = torch.cat([batch.advantages[:, 0] for batch in batches])  # the same for all tokens of a response
        weighted, sums = reweight_over_processes(self, log_probs, advantages, mask)
        if self._cw_options.kernel != "none":
            parts = weighted.split([len(batch.advantages) for batch in batches])
            for batch, part in zip(batches, parts, strict=True):
                batch.advantages = part[:, : batch.advantages.shape[1]]
        log(self, sums, started)
        if not self.template.padding_free:  # with it, a micro-batch is one row, which a record cannot take apart
            prompts = joined([_prompts(encoded) for encoded in batch_encoded_inputs])
            responses = joined([_responses(encoded) for encoded in batch_encoded_inputs])
            rewards = (self._rewards_per_func * self.reward_weights).nansum(-1)
            record(self, sums, log_probs, advantages, mask, rewards, prompts, responses, self.template.tokenizer)


def _responses(encoded: dict[str, Any]) -> torch.Tensor:
    """Token ids of the columns that log-probs and mask have."""
    return encoded["model_inputs"]["input_ids"][:, -encoded["grpo_batch"].completion_mask.shape[1] :]


def _prompts(encoded: dict[str, Any]) -> torch.Tensor:
    """Token ids plus 1 of what stands before the response, and 0 elsewhere."""
    inputs, response = encoded["model_inputs"], encoded["grpo_batch"].completion_mask
    begun = F.pad(response.long(), (inputs["input_ids"].shape[1] - response.shape[1], 0)).cumsum(-1) > 0
    return (inputs["input_ids"] + 1) * (inputs["attention_mask"].bool() & ~begun)
