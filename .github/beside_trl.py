"""The installed wheel's trainer is TRL's, without verl."""

import importlib.util

from trl import GRPOConfig, GRPOTrainer

from cw_plugin.hosts.trl import CWGRPOConfig, CWGRPOTrainer

assert importlib.util.find_spec("verl") is None
assert issubclass(CWGRPOConfig, GRPOConfig) and issubclass(CWGRPOTrainer, GRPOTrainer)
