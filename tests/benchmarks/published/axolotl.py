"""Axolotl's configurations, in files and on pages: its own code reads them, as published and with our plugin added."""

import re
import sys
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock, patch

import yaml
from axolotl.cli import config as axolotls_config
from axolotl.core.builders.rl import HFRLTrainerBuilder
from captured_commands import Command

from cw_plugin.hosts.trl import CWGRPOTrainer
from published import Verdict
from published.programs import Reached, Start, broken, look_for, reached, start, verdict

SCRIPTS = ("docs/**/*.qmd", "docs/**/*.md", "src/**/*.md", "src/**/*.yaml", "examples/**/*.y*ml")
ROOT = Path(__file__).parents[3]
PLUGIN = "cw_grpo.CWGRPOPlugin"
# What a page leaves out, because it shows a part of a configuration.
REST = {
    "base_model": str(ROOT / "examples" / "cpu" / "model"),
    "datasets": [{"path": "problems.jsonl", "type": "rewards.transform"}],
    "learning_rate": 1e-6,
    "micro_batch_size": 8,
    "gradient_accumulation_steps": 1,
    "num_epochs": 1,
}


def judge(command: Command) -> Verdict | None:
    """None for a configuration that does not train with prompt groups."""
    text = (command.folder / command.words[-1]).read_text(encoding="utf-8")
    if not re.search(r"^rl: *(grpo|gdpo)\b", text, re.MULTILINE):
        return None
    config = yaml.safe_load(text)
    config = REST | config | {"base_model": REST["base_model"]}
    plain = _start(command, config)
    if plain.ended:
        return broken(plain)
    changed = _start(command, config | {"plugins": [*config.get("plugins", ()), PLUGIN]})
    return verdict(changed)


def _start(command: Command, config: dict[str, Any]) -> Start:
    given = config.get("trl") or {}
    for name in [*(given.get("reward_funcs") or ()), given.get("rollout_func") or ""]:
        module = name.split(".")[0]
        if module not in ("", "axolotl"):  # of the user
            (command.folder / f"{module}.py").write_text("def __getattr__(name):\n    return print\n")
    file = command.folder / "config.yaml"
    file.write_text(yaml.safe_dump(config), encoding="utf-8")
    with patch.object(sys, "path", [str(ROOT / "examples" / "axolotl"), *sys.path]):
        return start(command, __name__, [str(file)], look_for(CWGRPOTrainer))


if __name__ == "__main__":  # in a started program
    gym = "axolotl.integrations.nemo_gym"  # which would clone a repository, read its data, and start its servers
    with patch.dict(sys.modules, {f"{gym}.server": MagicMock(), f"{gym}.dataset": MagicMock()}):
        cfg = axolotls_config.load_cfg(sys.argv[1])
    reached["trainer"] = HFRLTrainerBuilder(cfg, None, None)._get_trainer_cls({})[0]
    raise Reached
