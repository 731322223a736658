"""Importing this module registers CW-GRPO with verl: estimator, policy loss and hooks.

From version 0.9 on, verl imports it in each of its processes through the entry point in the group ``verl.plugins``.
Earlier versions have no entry points and need ``VERL_USE_EXTERNAL_MODULES=cw_plugin.hosts.verl.register`` in the
environment of every process. So the package must be installed on every node: ``cw-grpo doctor`` asks a worker on each.
Without the doctor, hooks.require_hooks refuses to train, or verl itself refuses the name cw_grpo, at the latest with
the first batch. The estimator runs in the trainer's process alone, the loss in every actor.

This module imports nothing heavy: code that needs a module of verl waits until verl
imports it.
"""

import sys

import cw_plugin

try:
    from cw_plugin.hosts.verl.hooks import install_when_imported

    install_when_imported()
except Exception as error:
    # verl logs a failing plugin only at debug level, and goes on without it. So report the cause here.
    print(
        f"cw_plugin {cw_plugin.__version__} could not register with verl: {type(error).__name__}: {error}",
        file=sys.stderr,
    )
    raise
