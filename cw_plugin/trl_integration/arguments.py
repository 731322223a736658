"""Writes a run's arguments as text. transformers itself keeps them only as a pickle, training_args.bin."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from cw_plugin.files import write_whole
from cw_plugin.trl_integration.config import CWGRPOConfig, option

ARGUMENTS = "training_args.json"


class ArgumentsFile(TrainerCallback):
    """Writes ``training_args.json`` to output_dir when training begins; ``cw-grpo report`` reads it."""

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        if not state.is_world_process_zero:
            return
        ours = {field.name: option(args, field.name) for field in fields(CWGRPOConfig) if field.name[:3] == "cw_"}
        known = {"model": getattr(model, "name_or_path", None), "max_steps": state.max_steps}  # -1 in args is no limit
        text = json.dumps({**args.to_dict(), **ours, **known}, indent=1, default=str)
        write_whole(Path(args.output_dir) / ARGUMENTS, text)
