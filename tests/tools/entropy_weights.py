"""A weighting whose weights are the entropies, so that their mean is the entropy that a host logs."""

from cw_plugin.registry import weighting


@weighting(scaled=False, needs_entropies=True)
def entropies(group):
    return group.entropies
