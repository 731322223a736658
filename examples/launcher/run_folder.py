"""A run's folder: it has one owner at a time and one set of settings, and its results are never removed.

launch.py claims it. The settings of its run are those that hydra saved when the run last started.
"""

import json
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from folder_lock import ELSEWHERE, FolderError, claim
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import OverrideParseException
from omegaconf import OmegaConf
from yaml import YAMLError

from cw_plugin.lab.configs import differences, flat

# Settings that may change when a run is resumed: its length, what it logs, saves and validates, where it is stored and
# runs, and what only affects memory. With other changes, verl can resume a checkpoint of this run in another folder:
# trainer.resume_mode=resume_path trainer.resume_from_path=FOLDER/global_step_100
FREE = (
    "trainer.total_*", "trainer.log*", "trainer.save_freq", "trainer.test_freq", "trainer.val_before_train",
    "trainer.max_*_ckpt_to_keep", "trainer.default_*_dir", "trainer.*_data_dir",
    "trainer.resume_*",  # where it began; over checkpoints of its own it is refused below
    "hydra", "ray_kwargs", "global_profiler", "*.num_workers", "data.*_num_workers",
    "*.enable_gradient_checkpointing", "*.param_offload", "*.optimizer_offload",
    "actor_rollout_ref.rollout.gpu_memory_utilization", "actor_rollout_ref.rollout.max_num_*",
    "actor_rollout_ref.rollout.*.distributed_executor_backend",
    "actor_rollout_ref.*.log_prob_*_per_gpu", "algorithm.cw_grpo.record_*",
)  # fmt: skip
# These only take memory with a loss that looks at one token at a time; clip_cov, kl_cov and the loss cw_grpo take
# statistics over a micro-batch.
MICRO_BATCHES = ("actor_rollout_ref.actor.ppo_max_token_len_per_gpu", "actor_rollout_ref.actor.ppo_micro_batch_size*")
LOSS = "actor_rollout_ref.actor.policy_loss.loss_mode"

RESULTS = ("metrics*.jsonl", "validation/*", "tensorboard/*", "tokens/*", "global_step_*", "checkpoints/*")
STEP = "training/global_step"


def refuse(text: str) -> NoReturn:
    print(text, file=sys.stderr)
    sys.exit(2)


def parse(arguments: Sequence[str]) -> dict[str, Any]:
    """Hydra overrides by dotted key; the last one of a key wins, as in hydra. Flags and file names are ignored."""
    overrides = [text for text in arguments if not text.startswith("-") and ("=" in text or text.startswith("~"))]
    try:
        parsed = OverridesParser.create().parse_overrides(overrides)
    except OverrideParseException as error:
        why = str(error).splitlines()[0]
        refuse(f"{error.override!r} is not an override that hydra can read ({why}); quote VALUE in KEY='VALUE'")
    return flat({override.key_or_group: override.value() for override in parsed})


def read_steps(path: Path) -> list[dict[str, Any]]:
    """The training steps that verl's "file" logger has written so far; a line that cannot be read is left out."""
    records = []
    for line in path.read_bytes().split(b"\n")[:-1] if path.exists() else []:
        with suppress(ValueError, TypeError, KeyError):
            record = json.loads(line)
            if STEP in record["data"]:
                records.append(record)
    return records


class RunFolder:
    """The folder of the run that a command starts.

    Args:
        path: is created if missing, and locked; exit 2 if another process holds it, or if it cannot be written.
        overrides: the command's, from :func:`parse`.
    """

    def __init__(self, path: Path, overrides: dict[str, Any]):
        self.path, self.overrides = path, overrides
        self.steps: int | None = overrides.get("trainer.total_training_steps")
        if self.steps is not None and not (isinstance(self.steps, int) and self.steps > 0):
            refuse(f"trainer.total_training_steps is {self.steps}: it must be a whole number above 0.")
        try:
            self.lock = claim(path)
        except FolderError as error:
            refuse(str(error))

    @property
    def checkpoint(self) -> int:
        """The step that verl resumes from, as verl wrote it down; 0 for a new run."""
        folder = Path(self.overrides.get("trainer.default_local_dir") or self.path)
        tracker = folder / "latest_checkpointed_iteration.txt"
        text = tracker.read_text(errors="replace").strip() if tracker.exists() else "0"
        if not text.isdigit():
            refuse(f"{tracker} holds {text[:20]!r}: write the step of the newest whole global_step_* into it")
        return int(text) if (folder / f"global_step_{text}").exists() else 0

    @property
    def logged(self) -> int:
        """The last step of all starts whose metrics are there."""
        records = (record for path in self.path.glob("metrics*.jsonl") for record in read_steps(path))
        return max((record["data"][STEP] for record in records), default=0)

    @property
    def finished(self) -> bool:
        """Whether the run is complete.

        Where metrics are logged, its last step has to be among them: verl validates after the last checkpoint. It also
        has to be saved, if steps are: of a run that is made shorter, a step may be logged that was lost.
        """
        if self.steps is None:
            return False
        if not self.logged:
            return self.checkpoint >= self.steps
        saves = self.checkpoint > 0 and self.overrides.get("trainer.save_freq", -1) > 0  # -1 is verl's default
        return self.logged >= self.steps and (self.checkpoint >= self.steps or not saves)

    def protect_results(self) -> None:
        """Exit 2 if the folder has results of other settings, or if the command would overwrite results."""
        checkpoint = self.checkpoint
        if not checkpoint and not any(file for pattern in RESULTS for file in self.path.glob(pattern)):
            return
        saved = Path(self.overrides.get("hydra.run.dir") or self.path / "hydra") / ".hydra"
        if not (saved / "overrides.yaml").exists():
            refuse(f"{self.path} holds results, but not their settings ({saved}/overrides.yaml): {ELSEWHERE}")
        if changes := changed(saved, self.overrides):
            head = f"{self.path} holds a run with other settings (step {max(self.logged, checkpoint)}):"
            lines = [f"{key} was {was}, is {now}" for key, (was, now) in changes.items()]
            refuse("\n  ".join([head, *lines]) + f"\nUse the previous settings to resume it, or {ELSEWHERE}.")
        mode = self.overrides.get("trainer.resume_mode", "auto")
        if mode != "auto" and checkpoint:
            refuse(f"trainer.resume_mode={mode} would write over the run in {self.path}: leave it out, or {ELSEWHERE}.")

    def keep_older_files(self) -> None:
        """Rename logs that the run would overwrite: train.log becomes train.0.log, the next one train.1.log."""
        names = ["train.log", "metrics.jsonl"]
        if not self.checkpoint:  # else verl adds to the folder
            names.append("validation")
        for name in names:
            path = self.path / name
            older = [file.name.split(".")[1] for file in self.path.glob(f"{path.stem}.*{path.suffix}")]
            if path.exists():
                number = 1 + max((int(text) for text in older if text.isdigit()), default=-1)
                path.rename(self.path / f"{path.stem}.{number}{path.suffix}")


def changed(saved: Path, overrides: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Settings that differ from those in ``saved``, hydra's folder, and must not: key -> (before, now)."""
    default = "verl's default"
    try:
        before = parse(list(OmegaConf.load(saved / "overrides.yaml")))
        config = OmegaConf.load(saved / "config.yaml")
    except (OSError, ValueError, YAMLError) as error:
        refuse(f"{saved} does not hold the settings of its run ({error}): {ELSEWHERE}")
    for key in overrides.keys() - before.keys():  # the command may state what the configuration said by itself
        value = OmegaConf.select(config, key, default=default, throw_on_resolution_failure=False)
        before[key] = OmegaConf.to_container(value) if OmegaConf.is_config(value) else value
    losses = {before.get(LOSS, "vanilla"), overrides.get(LOSS, "vanilla")}
    ignored = FREE + (MICRO_BATCHES if losses <= {"vanilla", default} else ())
    return differences(before, dict.fromkeys(before, default) | overrides, ignored)
