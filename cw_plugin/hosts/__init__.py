"""The hosts: a folder for each training framework, which knows no other one.

A new host is a folder beside openrlhf/, the smallest complete one. It has:

1. A line in host.py: its name, and the oldest and newest release that the tests run.
2. ``needs.py``, whose ``NEEDS`` lists the functions of the host that the plugin calls, extends or wraps. The method
   requires them before it trains (:meth:`cw_plugin.hosts.host.Host.require`).
3. ``refused_settings.py``, which raises an OptionsError for each setting under which the loss would lose the weights.
4. Options in the form that the host takes, or :meth:`cw_plugin.options.Options.from_environment`. If the host has no
   entropies before the update, :meth:`cw_plugin.options.Options.refuse_without_entropies`.
5. A :class:`cw_plugin.run.Run`, or a :class:`cw_plugin.sharded.ShardedRun` where several processes hold the rows.
   Before the host loads a checkpoint, it calls ``begin``. After the host has computed the advantages of a batch, and
   before they are spread over micro-batches, it puts them into a :class:`cw_plugin.batch.Batch`, calls ``reweight``,
   and trains on the advantages that this returns.

Trainers on transformers' Trainer derive from :class:`cw_plugin.hosts.transformers_trainer.ReweightingTrainer`. The
tests run the host's real classes, and a probe in tests/tools shows what reached the loss. Reports need the names of the
host's metrics (lab/reports/metrics.py), and its rewards a form that the host calls (lab/rewards/).
"""
