"""method_file.py for transformers' Trainer, on which TRL and ms-swift build."""

import os
from pathlib import Path

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from cw_plugin.method_file import refuse_other_method, write_method
from cw_plugin.options import Options


class MethodCallback(TrainerCallback):
    """Refuses to resume a run under another scope or kernel than its checkpoints have.

    Args:
        options: those of the run.
        prefix: what precedes an option's name in the host's configuration.

    Attributes:
        resumes: what the trainer's ``train`` was told to resume, which transformers tells no callback: the folder of a
            checkpoint, else one of ``output_dir``. Each start of ms-swift has a new ``output_dir``.
    """

    def __init__(self, options: Options, prefix: str = "") -> None:
        self.resumes: str | os.PathLike[str] | bool | None = None
        self._options = options
        self._prefix = prefix

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        """Refuse to resume another method's checkpoints (OptionsError)."""
        if state.global_step > 0:  # it resumes
            folder = Path(args.output_dir)
            if isinstance(self.resumes, (str, os.PathLike)):
                folder = Path(self.resumes).resolve().parent
            refuse_other_method(folder, self._options, self._prefix)

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object) -> None:
        """Write the method beside the checkpoints."""
        if state.is_world_process_zero:
            write_method(Path(args.output_dir), self._options)
