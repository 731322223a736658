"""The options of CW-GRPO beside those of TRL, and the files with a run's arguments and metrics."""

from dataclasses import asdict, dataclass, field
from pathlib import Path

from transformers import PreTrainedModel, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from trl import GRPOConfig

from cw_plugin.errors import OptionsError
from cw_plugin.files import write_whole
from cw_plugin.options import Options, Scope, variables
from cw_plugin.run import Run


@dataclass
class CWGRPOConfig(GRPOConfig):
    """TRL's GRPOConfig, and the options of :class:`cw_plugin.options.Options` with ``cw_`` before their names.

    Attributes:
        cw_scope: as in Options.
        cw_weights: as in Options; "none" is plain GRPO, bit for bit, with the same metrics and records.
        cw_settings: as in Options: ``{"alpha": 0.3}``, or "alpha=0.3" on a command line.
        cw_record_every: as in Options; records go to ``output_dir/tokens``. None means 50, or 0 with ``push_to_hub``:
            the Hub gets what is in output_dir, and records hold prompts and responses.

    Raises:
        OptionsError: a value that is not valid; the message says which are.
    """

    cw_scope: Scope = field(default="group", metadata={"help": "Tokens that share statistics: group or batch."})
    cw_weights: str = field(
        default="gaussian", metadata={"help": "gaussian, none for plain GRPO, another, or module:function of your own."}
    )
    cw_settings: dict[str, float] | str | None = field(
        default=None, metadata={"help": "Numbers of the weighting, such as alpha=0.3; their defaults if not given."}
    )
    cw_record_every: int | None = field(
        default=None, metadata={"help": "Steps between token records, 0 for none; 50, or 0 with push_to_hub."}
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        valid = options(self)
        self.cw_record_every = valid.record_every
        self.cw_settings = dict(valid.settings)


def options(args: GRPOConfig | None) -> Options:
    """The options in a CWGRPOConfig; those of the environment for another GRPOConfig, and for None."""
    if isinstance(args, CWGRPOConfig):
        values = {name: getattr(args, f"cw_{name}") for name in asdict(Options())}
    else:
        values = asdict(Options.from_environment())
        if "CW_GRPO_RECORD_EVERY" not in variables():
            values["record_every"] = None
    if values["record_every"] is None:
        values["record_every"] = 0 if getattr(args, "push_to_hub", False) else Options.record_every
    try:
        return Options.of(values)
    except OptionsError as error:  # its message begins with the option's name
        raise OptionsError(f"cw_{error.problem}", error.fix) from error


class ArgumentsFile(TrainerCallback):
    """Writes to ``output_dir`` what ``cw-grpo report`` reads: training_args.json and trainer_state.json.

    transformers itself keeps the arguments only as a pickle, training_args.bin, and metrics only with checkpoints, of
    which there are none with ``save_strategy="no"``.
    """

    def __init__(self, run: Run) -> None:
        self._run = run

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: PreTrainedModel | None = None,
        **_: object,
    ) -> None:
        """Write the run's arguments."""
        if state.is_world_process_zero:
            arguments = args.to_dict()
            arguments["model"] = getattr(model, "name_or_path", None)
            arguments["max_steps"] = state.max_steps  # those of ``args`` may be -1
            self._run.write_settings(arguments)

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object) -> None:
        """Write the run's metrics."""
        if state.is_world_process_zero:
            write_whole(Path(args.output_dir) / "trainer_state.json", lambda path: state.save_to_json(str(path)))
