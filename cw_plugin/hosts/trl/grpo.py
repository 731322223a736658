"""TRL's script grpo.py with CW-GRPO: what ``python -m cw_plugin.hosts.trl grpo`` starts in each process."""

import runpy

import trl

from cw_plugin.hosts.trl import CWGRPOConfig, CWGRPOTrainer


def put_in_place_of_trls() -> None:
    """Let what imports GRPOConfig and GRPOTrainer of ``trl`` from now on get those of this package."""
    trl.GRPOConfig, trl.GRPOTrainer = CWGRPOConfig, CWGRPOTrainer


if __name__ == "__main__":
    put_in_place_of_trls()
    runpy.run_module("trl.scripts.grpo", run_name="__main__", alter_sys=True)
