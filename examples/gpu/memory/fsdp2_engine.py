"""What a rank of verl's FSDP2 engine needs, counted by PyTorch's tracker: float32 weights, gradients and Adam."""

from math import prod

from estimate import Estimate, NotCalculatedError, gpus, has_reference, log_prob_tokens, stages_of, training_tokens
from omegaconf import DictConfig
from shapes import parameter_shapes, read_shape
from tracked import fsdp2_log_probs, fsdp2_training

KEPT = ("weights", "gradients", "optimizer")  # between two passes; the rest is the work of one


def needs(config: DictConfig, gpu: float) -> Estimate:
    """As :func:`estimate.estimate`, for ``actor.strategy=fsdp2``."""
    engine, model = config.actor_rollout_ref.actor.fsdp_config, config.actor_rollout_ref.model
    if engine.offload_policy:
        raise NotCalculatedError("the memory of offload_policy is not calculated; use param_offload")
    shape = read_shape(model.path)
    parameters = sum(map(prod, parameter_shapes(shape).values()))
    ranks = engine.fsdp_size if engine.fsdp_size > 0 else gpus(config)
    training = fsdp2_training(shape, ranks, training_tokens(config), model.enable_gradient_checkpointing)
    chunked = engine.entropy_from_logits_with_chunking
    log_probs = fsdp2_log_probs(shape, ranks, log_prob_tokens(config), chunked)
    held = {name: training[name] for name in KEPT}
    passes = sum(size for name, size in training.items() if name not in KEPT)
    log_prob_work = sum(size for name, size in log_probs.items() if name != "weights")
    resident = {
        "weights": 0.0 if engine.param_offload else held["weights"],
        "optimizer": 0.0 if engine.optimizer_offload else held["optimizer"],
    }
    # Adam of PyTorch needs the size of the weights once more while it steps (torch.optim, "foreach").
    training_work = max(passes, held["weights"])
    offloaded = held["weights"] + held["optimizer"] - sum(resident.values())
    if has_reference(config):
        offloaded += 4.0 * parameters / ranks  # in float32, always on the CPU
    return Estimate(
        engine="FSDP2",
        parameters=parameters,
        stages=stages_of(config, gpu, held, resident, log_prob_work, training_work),
        host=offloaded * config.trainer.n_gpus_per_node,
        checkpoint=12.0 * parameters,
    )
