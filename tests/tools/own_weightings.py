"""Weightings as a user writes them, named as ``own_weightings:function``."""

import torch

from cw_plugin.registry import weighting


@weighting(scaled=False, needs_entropies=True)
def entropies(group):
    """Their mean is the entropy that a host logs."""
    return group.entropies


@weighting(scaled=True)
def cauchy(group):
    """It builds a tensor on PyTorch's default device."""
    return torch.ones(len(group.z)) / (1 + group.z.square())
