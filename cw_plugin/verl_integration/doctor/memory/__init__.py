"""The memory and disk that a run of verl needs, calculated before it takes a GPU."""

from cw_plugin.verl_integration.doctor.memory.estimate import Estimate, Stage, estimate

__all__ = ["Estimate", "Stage", "estimate"]
