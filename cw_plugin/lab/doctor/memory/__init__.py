"""The memory and disk that a run of verl needs."""

from cw_plugin.lab.doctor.memory.estimate import estimate

__all__ = ["estimate"]
