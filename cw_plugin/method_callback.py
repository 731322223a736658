"""method_file.py for transformers' Trainer, on which TRL and ms-swift build."""

from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from cw_plugin.method_file import refuse_other_method, write_method
from cw_plugin.options import Options


class MethodCallback(TrainerCallback):
    """Refuses to resume a run of ``output_dir`` under another scope or kernel than its checkpoints have.

    Args:
        prefix: of an option's name in the host's configuration.
    """

    def __init__(self, options: Options, prefix: str = "") -> None:
        self._options, self._prefix = options, prefix

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step > 0:  # it resumes
            refuse_other_method(Path(args.output_dir), self._options, self._prefix)

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.is_world_process_zero:
            write_method(Path(args.output_dir), self._options)
