"""Importing this module registers the trainer of ``cw-grpo evaluate`` with verl, as soon as verl imports its trainers.

verl imports it in each of its processes, through the entry point in the group ``verl.plugins``. It imports nothing
heavy: :mod:`.validation_trainer`, which needs verl's trainers, is imported after them.
"""

import importlib

import wrapt

wrapt.register_post_import_hook(
    lambda _: importlib.import_module("cw_plugin.lab.evaluation.validation_trainer"),
    "verl.trainer.ppo.v1.trainer_sync",
)
