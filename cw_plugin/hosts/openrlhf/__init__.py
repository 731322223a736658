"""CW-GRPO for OpenRLHF: its PPO trainer, trained on w~ A in place of A. OpenRLHF's code runs unchanged.

A run asks for the method by the hook: :func:`install`, which Ray calls in each of its workers. Either this module
starts the training, with the arguments of train_ppo_ray, and fails if Ray's workers lack the hook::

    python -m cw_plugin.hosts.openrlhf ...

or a job names the hook, and starts OpenRLHF's program::

    ray job submit --runtime-env-json '{"worker_process_setup_hook": "cw_plugin.hosts.openrlhf.install"}' \
        -- python3 -m openrlhf.cli.train_ppo_ray ...

OpenRLHF's command line takes no options of ours, so they are environment variables (:mod:`cw_plugin.options`). A job
passes them to Ray's workers under ``"env_vars"``; this module passes on those that it was started with.

Weights are computed in the trainer's process, over the whole batch, before its rows are spread over the actors. A
prompt group is ``index // n_samples_per_prompt``, as in OpenRLHF's own advantages.

needs.py lists what the method needs from OpenRLHF.
"""

from cw_plugin.hosts.openrlhf.hook import install

__all__ = ["install"]
