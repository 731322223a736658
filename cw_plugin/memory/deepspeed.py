"""What a rank holds that trains with DeepSpeed's ZeRO-2 or ZeRO-3 in bfloat16.

Read in DeepSpeed 0.19.6, runtime/zero/stage_1_and_2.py and stage3.py, and compared with what its engine holds by
tests/test_memory_of_hosts.py:

- Weights in bfloat16: whole in ZeRO-2 (bit16_groups_flat), a share in ZeRO-3.
- Gradients in bfloat16: a rank keeps its share (averaged_gradients). From the second micro-batch on, the share of the
  new micro-batch lies beside it (copy_grads_in_partition) until it is added (independent_gradient_partition_epilogue).
  Until they are reduced, gradients lie in a bucket of reduce_bucket_size, 5e8 entries.
- The optimizer in float32: a rank's share of the weights (single_partition_of_fp32_groups), and Adam's two moments.
  While it steps, the share of the gradients is there in float32 as well (step).
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cw_plugin.errors import OptionsError
from cw_plugin.memory import tracked
from cw_plugin.memory.stages import Stage

if TYPE_CHECKING:
    from transformers import PretrainedConfig

HALF, SINGLE = 2, 4  # bytes of an entry in bfloat16 and in float32
BUCKET = 500_000_000  # entries; DeepSpeed's reduce_bucket_size
LIVE = 1_000_000_000  # entries; the weights that ZeRO-3 gathers at once, stage3_max_live_parameters
CHECKPOINT = 16  # bytes a parameter: bfloat16, what the optimizer holds, and the Hugging Face copy


@dataclass(frozen=True)
class Zero:
    """How DeepSpeed divides a model of ``parameters``: its ZeRO stage, 2 or 3, and the number of ranks."""

    stage: int
    ranks: int
    parameters: int

    def __post_init__(self) -> None:
        if self.stage not in (2, 3):
            raise OptionsError(f"the memory of ZeRO-{self.stage} is not calculated", fix="use ZeRO-2 or ZeRO-3")

    @property
    def share(self) -> float:
        """The parameters of a rank."""
        return self.parameters / self.ranks

    @property
    def weights(self) -> float:
        """Bytes of weights that a rank keeps, of a model that trains or only computes log-probs."""
        return HALF * (self.parameters if self.stage == 2 else self.share)

    @property
    def gathered(self) -> float:
        """Bytes of weights that a rank gathers while it computes."""
        return 0.0 if self.stage == 2 else float(HALF * min(self.parameters, LIVE))

    @property
    def gradients(self) -> float:
        """Bytes of gradients that a rank keeps between two micro-batches."""
        return HALF * self.share

    @property
    def optimizer(self) -> float:
        """Bytes of float32 weights and of Adam's moments."""
        return 3 * SINGLE * self.share


@dataclass(frozen=True)
class Run:
    """What the stages of a run with DeepSpeed depend on.

    Attributes:
        shape: the model's.
        zero: how it is divided.
        forward: the framework's forward pass of a micro-batch in training.
        forward_only: its forward pass of a micro-batch for log-probs without gradients.
        recompute: whether gradient checkpointing is on.
        micro_batches: of a rank in a step.
        has_reference: whether a reference policy is on the same GPUs.
    """

    shape: "PretrainedConfig"
    zero: Zero
    forward: tracked.Forward
    forward_only: tracked.Forward
    recompute: bool
    micro_batches: int
    has_reference: bool

    @property
    def reference(self) -> float:
        """Bytes of the reference policy's weights."""
        return self.zero.weights if self.has_reference else 0.0


def log_probs(run: Run, resident: dict[str, float], processes: float) -> Stage:
    """The stage that computes log-probs, while ``resident`` is on the GPU."""
    work = tracked.forward_pass(run.shape, run.forward_only) + run.zero.gathered
    return Stage("log-probs", {**resident, "activations": work, "processes": processes})


def training(run: Run, processes: float) -> Stage:
    """The stage that trains. Activations include the bucket, gathered weights and a new micro-batch's gradients."""
    zero = run.zero
    backward = tracked.passes(run.shape, run.forward, run.recompute) + zero.gathered + HALF * BUCKET
    if run.micro_batches > 1:
        backward += zero.gradients  # of the next micro-batch
    step = SINGLE * zero.share + zero.gradients  # in float32, and flattened
    held = {"weights": zero.weights, "gradients": zero.gradients, "optimizer": zero.optimizer}
    work = {"activations": max(backward, step), "processes": processes}
    return Stage("training", {**held, "reference": run.reference, **work})
