"""CW-GRPO for the Tinker cookbook: put this function in the place of the cookbook's, before you start its training."""

import torch
from tinker import TensorData
from tinker_cookbook.rl import data_processing
from torch.nn.utils.rnn import pad_sequence

from cw_plugin.reweight import reweight


def assemble_training_data(trajectory_groups_P, advantages_P, include_provenance=True):
    """The cookbook's data, whose advantages A are w~ A; weights are over all tokens of a group's trajectories."""
    data_D, metadata_D = data_processing.assemble_training_data(trajectory_groups_P, advantages_P, include_provenance)
    if not data_D:
        return data_D, metadata_D
    log_probs, advantages, mask = (
        pad_sequence([datum.loss_fn_inputs[name].to_torch() for datum in data_D], batch_first=True)
        for name in ("logprobs", "advantages", "mask")
    )
    group = torch.tensor([metadata["group_idx"] for metadata in metadata_D])
    weighted, _statistics = reweight(log_probs, advantages, mask, group)
    for datum, row in zip(data_D, weighted, strict=True):
        length = len(datum.loss_fn_inputs["advantages"].data)
        datum.loss_fn_inputs["advantages"] = TensorData.from_torch(row[:length])
    return data_D, metadata_D
