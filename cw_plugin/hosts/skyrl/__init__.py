"""CW-GRPO for SkyRL: its PPO trainer, trained on w~ A in place of A. SkyRL's code runs unchanged.

SkyRL's program starts with the method if one argument names this package, whose :func:`main` it then calls::

    python -m skyrl.train.entrypoints.main_base ... trainer.override_entrypoint=cw_plugin.hosts.skyrl

A program with a trainer of its own puts :class:`CWGRPOTrainer` in front of it::

    class Mine(CWGRPOTrainer, FullyAsyncRayPPOTrainer): ...

SkyRL's command line takes no options of ours, so they are environment variables (:mod:`cw_plugin.options`).

needs.py lists what the method needs from SkyRL.
"""

from cw_plugin.hosts.host import SKYRL
from cw_plugin.hosts.skyrl.refused_settings import check

try:
    from cw_plugin.hosts.skyrl.entrypoint import main
    from cw_plugin.hosts.skyrl.trainer import CWGRPOTrainer
except ImportError as error:
    raise SKYRL.misfit(str(error)) from error

__all__ = ["CWGRPOTrainer", "check", "main"]
