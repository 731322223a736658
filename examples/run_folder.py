"""A run's folder: it has one owner at a time and one set of settings, and its results are never removed.

launch.py claims it. The settings of its run are those that hydra saved when the run last started.
"""

from __future__ import annotations

import fcntl
import json
import os
import platform
import sys
import time
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NoReturn, TextIO

import psutil
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import OverrideParseException
from omegaconf import OmegaConf

# Settings that may change when a run is resumed: its length, what it logs, saves and validates, where it is stored and
# runs, and what only affects memory. With other changes, verl can resume a checkpoint of this run in another folder:
# trainer.resume_mode=resume_path trainer.resume_from_path=FOLDER/global_step_100
FREE = (
    "trainer.total_training_steps",
    "trainer.total_epochs",
    "trainer.logger",
    "trainer.log_val_generations",
    "trainer.save_freq",
    "trainer.test_freq",
    "trainer.val_before_train",
    "trainer.max_*_ckpt_to_keep",
    "trainer.resume_*",  # where it began; over checkpoints of its own it is refused below
    "trainer.default_local_dir",
    "trainer.default_hdfs_dir",
    "trainer.*_data_dir",
    "hydra.*",
    "ray_kwargs.*",
    "global_profiler.*",
    "*.num_workers",
    "data.*_num_workers",
    "*.enable_gradient_checkpointing",
    "*.param_offload",
    "*.optimizer_offload",
    "actor_rollout_ref.rollout.gpu_memory_utilization",
    "actor_rollout_ref.rollout.max_num_*",
    "actor_rollout_ref.*.log_prob_*_per_gpu",
    "algorithm.cw_grpo.record_*",
    "algorithm.cw_grpo.entropy_*",
)
# These only take memory with a loss that looks at one token at a time; clip_cov, kl_cov and the loss cw_grpo take
# statistics over a micro-batch.
MICRO_BATCHES = ("actor_rollout_ref.actor.ppo_max_token_len_per_gpu", "actor_rollout_ref.actor.ppo_micro_batch_size*")
LOSS = "actor_rollout_ref.actor.policy_loss.loss_mode"

RESULTS = ("metrics*.jsonl", "validation/*", "tensorboard/*", "tokens/*", "global_step_*", "checkpoints/*")


def refuse(text: str) -> NoReturn:
    print(text, file=sys.stderr)
    sys.exit(2)


def parse(arguments: Sequence[str]) -> dict[str, Any]:
    """Hydra overrides by key; the last one of a key wins, as in hydra. Flags and file names are ignored."""
    overrides = [text for text in arguments if not text.startswith("-") and ("=" in text or text.startswith("~"))]
    try:
        parsed = OverridesParser.create().parse_overrides(overrides)
    except OverrideParseException as error:
        refuse(f"{error.override!r} is not an override that hydra can read: {str(error).splitlines()[0]}")
    return {override.key_or_group: override.value() for override in parsed}


class RunFolder:
    """The folder of the run that a command starts.

    Args:
        path: is created if missing, and locked; exit 2 if another process holds it.
        overrides: the command's, from :func:`parse`.
        knob: the variable that names another folder, for the messages.
    """

    def __init__(self, path: Path, overrides: dict[str, Any], knob: str):
        self.path, self.overrides, self.knob = path, overrides, knob
        path.mkdir(parents=True, exist_ok=True)
        self.lock = self._lock()

    def _lock(self) -> TextIO:
        """The file whose lock this process, and those that inherit the file, hold until they have ended."""
        lock = open(self.path / ".lock", "a+")  # noqa: SIM115 - for as long as this process lives
        deadline = time.monotonic() + 30
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                lock.seek(0)
                pid, _, host = lock.read().strip().partition(" on ")
                gone = not pid or (host == platform.node() and not psutil.pid_exists(int(pid)))
                if not gone or time.monotonic() > deadline:
                    refuse(
                        f"{self.path} is in use by process {pid} on {host}: wait until it has ended, or name another "
                        f"folder with {self.knob}=..."
                    )
                time.sleep(0.2)  # what that process has started is being ended
            except OSError as error:
                print(f"{self.path} cannot be locked ({error.strerror}): start no second run in it.", file=sys.stderr)
                break
        lock.truncate(0)
        lock.write(f"{os.getpid()} on {platform.node()}\n")
        lock.flush()
        return lock

    @property
    def steps(self) -> int | None:
        """How many the command asks for."""
        return self.overrides.get("trainer.total_training_steps")

    @property
    def checkpoint(self) -> int:
        """The step that verl resumes from; 0 for a new run."""
        step = self._saved
        return step if (self._checkpoints / f"global_step_{step}").exists() else 0

    @property
    def _checkpoints(self) -> Path:
        return Path(self.overrides.get("trainer.default_local_dir") or self.path)

    @property
    def _saved(self) -> int:
        tracker = self._checkpoints / "latest_checkpointed_iteration.txt"
        return int(tracker.read_text()) if tracker.exists() else 0

    @property
    def _logged(self) -> int:
        records = (record for path in self.path.glob("metrics*.jsonl") for record in read_metrics(path))
        return max((record["step"] for record in records if "training/global_step" in record["data"]), default=0)

    @property
    def marker(self) -> Path:
        return self.path / "finished"

    @property
    def finished(self) -> bool:
        """Whether the run is complete.

        A checkpoint of the last step alone does not say so: verl validates and logs after it.
        """
        if self.steps is None:
            return False
        return self._logged >= self.steps or (self.marker.exists() and self._saved >= self.steps)

    def finish(self) -> None:
        """Mark the folder as complete after the command succeeded, unless it stopped before its last step."""
        reached = max(self._logged, self._saved)
        if self.steps is None:
            return
        if reached >= self.steps:
            self.marker.touch()
        else:
            print(f"{self.path} has ended at step {reached} of {self.steps}, and is not finished.")

    def refuse_other_settings(self) -> None:
        """Exit 2 if the folder has results of other settings, or if the command would overwrite results."""
        if not self._saved and not any(file for pattern in RESULTS for file in self.path.glob(pattern)):
            return
        anew = f"name another folder with {self.knob}=... for a new run."
        saved = Path(self.overrides.get("hydra.run.dir") or self.path / "hydra") / ".hydra"
        if not (saved / "overrides.yaml").exists():
            refuse(f"{self.path} holds results, but not their settings ({saved}/overrides.yaml): {anew}")
        if found := list(differences(saved, self.overrides)):
            head = f"{self.path} holds a run with other settings (step {max(self._logged, self._saved)}):"
            refuse("\n  ".join([head, *found]) + f"\nUse the previous settings to resume it, or {anew}")
        mode = self.overrides.get("trainer.resume_mode", "auto")
        if mode != "auto" and self._saved:
            refuse(
                f"trainer.resume_mode={mode} would write over the run in {self.path}: leave it out to go on, or {anew}"
            )

    def keep_older_files(self) -> None:
        """Rename logs that the run would overwrite: train.log becomes train.0.log, the next one train.1.log."""
        self.marker.unlink(missing_ok=True)
        names = ["train.log", "metrics.jsonl"] + ["validation"] * (not self.checkpoint)
        for path in (self.path / name for name in names):
            if path.exists():
                older = (file.name.split(".")[1] for file in self.path.glob(f"{path.stem}.*{path.suffix}"))
                number = 1 + max((int(text) for text in older if text.isdigit()), default=-1)
                path.rename(self.path / f"{path.stem}.{number}{path.suffix}")


def differences(saved: Path, overrides: dict[str, Any]) -> Iterator[str]:
    """A line for each changed setting that must not change; ``saved`` is hydra's folder."""
    before = parse(list(OmegaConf.load(saved / "overrides.yaml")))
    config = OmegaConf.load(saved / "config.yaml")
    default = "verl's default"
    free = FREE + (
        MICRO_BATCHES if {before.get(LOSS, "vanilla"), overrides.get(LOSS, "vanilla")} == {"vanilla"} else ()
    )
    for key in dict.fromkeys([*before, *overrides]):
        if any(fnmatchcase(key, pattern) for pattern in free):
            continue
        was = before[key] if key in before else _select(config, key, default)
        now = overrides.get(key, default)
        if was != now:
            yield f"{key} was {was}, is {now}"


def _select(config: Any, key: str, default: str) -> Any:
    """verl's own value of a setting without an override; the command may state the same value."""
    value = OmegaConf.select(config, key, default=default, throw_on_resolution_failure=False)
    return OmegaConf.to_container(value) if OmegaConf.is_config(value) else value


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """What verl's "file" logger has written so far; the last line may still be being written."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1] if line]
