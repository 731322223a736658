"""CW-GRPO for SkyRL: its PPO trainer, trained on w~ A in place of A. SkyRL's code runs unchanged.

Any program that trains with SkyRL, its own or one of its examples, trains with the method if this package starts it::

    python -m cw_plugin.hosts.skyrl skyrl.train.entrypoints.main_base ...
    python -m cw_plugin.hosts.skyrl examples.train.algorithms.dapo.main_dapo ...

SkyRL's own program can also be asked for it by an argument, whose :func:`main` it then calls::

    python -m skyrl.train.entrypoints.main_base ... trainer.override_entrypoint=cw_plugin.hosts.skyrl

SkyRL's command line takes no options of ours, so they are environment variables (:mod:`cw_plugin.options`).

needs.py lists what the method needs from SkyRL.
"""

from cw_plugin.hosts.skyrl.hook import install
from cw_plugin.hosts.skyrl.program import main
from cw_plugin.hosts.skyrl.refused_settings import check

__all__ = ["check", "install", "main"]
