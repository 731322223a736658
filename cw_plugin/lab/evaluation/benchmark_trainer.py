"""Until hosts/verl/hooks.py no longer imports it: verl_plugin.py registers the trainer."""

from cw_plugin.lab.evaluation import validation_trainer as validation_trainer
