"""method_file.py for transformers' Trainer, on which TRL and ms-swift build."""

from pathlib import Path

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from cw_plugin.method_file import refuse_other_method, write_method
from cw_plugin.options import Options


class MethodCallback(TrainerCallback):
    """Refuses to resume a run under another scope or kernel than its checkpoints have.

    The checkpoints lie in ``output_dir``, or where ``resume_from_checkpoint`` says: each start of ms-swift has a new
    ``output_dir``.

    Args:
        options: those of the run.
        prefix: what precedes an option's name in the host's configuration.
    """

    def __init__(self, options: Options, prefix: str = "") -> None:
        self._options = options
        self._prefix = prefix

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        """Refuse to resume another method's checkpoints (OptionsError)."""
        if state.global_step > 0:  # it resumes
            checkpoint = args.resume_from_checkpoint
            folder = Path(checkpoint).parent if isinstance(checkpoint, str) else Path(args.output_dir)
            refuse_other_method(folder, self._options, self._prefix)

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object) -> None:
        """Write the method beside the checkpoints."""
        if state.is_world_process_zero:
            write_method(Path(args.output_dir), self._options)
