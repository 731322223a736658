"""CW-GRPO for ms-swift: its GRPOTrainer, trained on w~ A in place of A. examples/swift/plugin.py registers it.

A plugin cannot add flags to ms-swift's command line, so the options are environment variables: ``CW_GRPO_SCOPE``
(``group``, the default, or ``batch``) and ``CW_GRPO_KERNEL`` (``gaussian``, the default, or ``none`` for plain GRPO
with the same metrics).
"""

from __future__ import annotations

import os
import time
from typing import Any

import swift
import torch
import torch.nn.functional as F
from swift.rlhf_trainers import GRPOTrainer

from cw_plugin.errors import HostError, OptionsError
from cw_plugin.processes import reweight_over_processes

TESTED = "4.6.0"


class CWGRPOTrainer(GRPOTrainer):
    """ms-swift's GRPOTrainer whose advantages, (B, T) there, are multiplied by the paper's weights.

    Weights are computed once for a generation batch, over the prompt groups of all processes, from ms-swift's own
    ``old_per_token_logps``.

    Raises:
        OptionsError: an unknown value, or a setting under which the loss would not keep the weights.
        HostError: ms-swift lacks the method in which the weights are applied.
    """

    def __init__(self, *given: Any, **kwargs: Any) -> None:
        args = kwargs["args"]
        self._cw_scope = _option("CW_GRPO_SCOPE", ("group", "batch"))
        self._cw_kernel = _option("CW_GRPO_KERNEL", ("gaussian", "none"))
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
        for name in (name for name, there in refused.items() if there and self._cw_kernel != "none"):
            raise OptionsError(
                f"{name}={getattr(args, name)!r} takes one advantage for a whole response, so the loss would lose the "
                "weights; leave it at its default"
            )
        super().__init__(*given, **kwargs)
        if self.template.sequence_parallel_size > 1:
            raise OptionsError("CW-GRPO has not been tested with sequence_parallel_size > 1; set it to 1")

    def _postprocess_batch(self, samples: list[Any], batch_encoded_inputs: list[dict[str, Any]]) -> None:
        super()._postprocess_batch(samples, batch_encoded_inputs)
        if not self.model.training:
            return
        started = time.perf_counter()
        batches = [encoded["grpo_batch"] for encoded in batch_encoded_inputs]  # in the order of the rows
        if self.dynamic_num_samples or any(batch.teacher_per_token_logps is not None for batch in batches):
            raise OptionsError(
                "CW-GRPO weighs one advantage per response, in groups of num_generations responses; train without a "
                "teacher, and without a scheduler that changes the number of responses"
            )
        width = max(batch.completion_mask.shape[1] for batch in batches)

        def rows(name: str) -> torch.Tensor:
            values = [getattr(batch, name).float() for batch in batches]
            return torch.cat([F.pad(value, (0, width - value.shape[1])) for value in values])

        mask = rows("completion_mask")
        if self.overlong_filter:  # the loss will leave them out
            mask = mask * ~torch.cat([batch.truncated_mask for batch in batches])[:, None]
        weighted, statistics, _ = reweight_over_processes(
            self.accelerator,
            rows("old_per_token_logps"),
            rows("advantages")[:, 0],  # the same for all tokens of a response
            mask,
            self.num_generations,
            self._cw_scope,
            self._cw_kernel,
        )
        if self._cw_kernel != "none":
            parts = weighted.split([len(batch.advantages) for batch in batches])
            for batch, part in zip(batches, parts, strict=True):
                batch.advantages = part[:, : batch.advantages.shape[1]]
        for name, value in {**vars(statistics), "seconds": time.perf_counter() - started}.items():
            self._metrics["train"][f"cw_grpo/{name}"].append(value)


def _option(name: str, valid: tuple[str, ...]) -> Any:
    value = os.environ.get(name, valid[0])
    if value not in valid:
        raise OptionsError(f"{name}={value} is unknown; use {' or '.join(valid)}")
    return value
