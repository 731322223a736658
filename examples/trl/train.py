"""Train with TRL on problems that cw-grpo prepare has written: CW-GRPO, or with --cw_weights none plain GRPO.

    python train.py --config quickstart.yaml --output_dir runs/mine
    accelerate launch --config_file 4_gpus.yaml train.py --config paper.yaml --output_dir runs/mine

Every field of Run and of CWGRPOConfig, TRL's included, is a key of the YAML file and a flag; flags win. The same
command resumes an interrupted run from its last checkpoint.
"""

import json
import os
import shutil
import sys
import time
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

STARTED = time.monotonic()

from datasets import load_dataset  # noqa: E402
from transformers import AutoModelForCausalLM, AutoTokenizer, PrinterCallback, TrainerCallback  # noqa: E402
from trl import TrlParser  # noqa: E402

from cw_plugin.files import write_whole  # noqa: E402
from cw_plugin.hosts.trl import CWGRPOConfig, CWGRPOTrainer  # noqa: E402
from cw_plugin.lab.configs import differences  # noqa: E402
from cw_plugin.lab.rewards.trl import trl_rewards  # noqa: E402

sys.path.append(str(Path(__file__).resolve().parents[1] / "launcher"))
from folder_lock import FolderError, claim  # noqa: E402

SHOWN = {"reward": "reward", "entropy": "entropy", "cov before": "cw_grpo/covariance_before"}
SHOWN |= {"cov after": "cw_grpo/covariance_after", "tokens w<0.5": "cw_grpo/downweighted_share", "seconds": "step_time"}
# Settings that say where a run and its server are, or what it writes, and nothing of what it trains.
WHERE = (
    "output_dir",
    "run_name",
    "report_to",
    "logging_*",
    "log_*",
    "save_total_limit",
    "disable_tqdm",
    "vllm_server_*",
)


@dataclass
class Run:
    """What is trained, and on what.

    Attributes:
        model: a folder, or a name on the hub.
        train_file, eval_file: parquet files of cw-grpo prepare.
        max_prompt_length: in tokens; problems with a longer prompt are left out.
        dry_run: print the resolved settings as JSON, and train nothing.
    """

    model: str
    train_file: str
    eval_file: str | None = None
    max_prompt_length: int = 512
    dry_run: bool = False


class Progress(TrainerCallback):
    """A line for every step that is logged, in place of all its metrics."""

    def on_log(self, args, state, control, logs=None, **_):
        if not state.is_world_process_zero or "reward" not in logs:
            return
        minutes, seconds = divmod(int(time.monotonic() - STARTED), 60)
        values = "  ".join(f"{name} {logs[key]:.3f}" for name, key in SHOWN.items() if key in logs)
        print(f"[{minutes}:{seconds:02}] step {state.global_step:>3}  {values}", flush=True)


def whole_paths(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings with whole paths in place of relative ones, which mean something else in another folder."""
    paths = {name: settings.get(name) for name in ("model", "train_file", "eval_file")}
    whole = {name: os.path.abspath(path) for name, path in paths.items() if path and os.path.exists(path)}
    return settings | whole


def keep_settings(folder: Path, settings: dict[str, Any]) -> None:
    """Keep the settings in ``folder/settings.json``; refuse others than those that are there."""
    file = folder / "settings.json"
    known = whole_paths(json.loads(file.read_text())) if file.exists() else settings
    if changed := differences(known, settings, WHERE):
        changes = ", ".join(f"{name}={before!r}, not {now!r}" for name, (before, now) in changed.items())
        sys.exit(f"{folder} holds a run with {changes}; give another --output_dir")
    write_whole(file, json.dumps(settings, indent=1))


def last_checkpoint(folder: Path) -> tuple[int, Path | None]:
    """The last whole one and its step: trainer_state.json is written at its end, and a run may be killed before."""
    found = {file.parent.name.partition("-")[2]: file.parent for file in folder.glob("checkpoint-*/trainer_state.json")}
    return max(((int(step), checkpoint) for step, checkpoint in found.items() if step.isdigit()), default=(0, None))


def finish(checkpoint: Path) -> None:
    """Write what a run writes after its last step, if it was killed before."""
    folder, last = checkpoint.parent, "training_args.bin"  # which transformers writes after a model
    if not (folder / "model" / last).exists():
        shutil.copy(checkpoint / "trainer_state.json", folder)
        for part in (AutoTokenizer, AutoModelForCausalLM):
            part.from_pretrained(checkpoint).save_pretrained(folder / "model")
        shutil.copy(checkpoint / last, folder / "model")


def main() -> None:
    run, config = TrlParser((Run, CWGRPOConfig)).parse_args_and_config()
    settings = whole_paths(json.loads(json.dumps(asdict(run) | config.to_dict(), default=str)))
    for name in ("dry_run", "local_rank", "logging_dir"):  # not of the run, but of this call
        settings.pop(name, None)
    if run.dry_run:
        print(json.dumps(settings, indent=1))
        return
    if config.process_index == 0:
        try:
            lock = claim(Path(config.output_dir), "give another --output_dir")  # noqa: F841 - until this process ends
        except FolderError as error:
            sys.exit(str(error))
        keep_settings(Path(config.output_dir), settings)
    step, checkpoint = last_checkpoint(Path(config.output_dir))
    if checkpoint and step >= config.max_steps > 0:  # transformers would train one more
        print(f"{config.output_dir} is at its last step, {config.max_steps}: nothing is left to train.")
        if config.process_index == 0:
            finish(checkpoint)
        return

    tokenizer = AutoTokenizer.from_pretrained(run.model, padding_side="left")
    files = {"train": run.train_file} | ({"eval": run.eval_file} if run.eval_file else {})
    template = partial(tokenizer.apply_chat_template, add_generation_prompt=True, return_dict=False)
    problems = load_dataset("parquet", data_files=files)
    problems = problems.filter(lambda row: len(template(row["prompt"])) <= run.max_prompt_length)
    trainer = CWGRPOTrainer(
        run.model,
        reward_funcs=trl_rewards(run.model),
        args=config,
        train_dataset=problems["train"],
        eval_dataset=problems.get("eval"),
        processing_class=tokenizer,
        callbacks=[Progress()],
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train(resume_from_checkpoint=checkpoint and str(checkpoint))
    trainer.save_state()  # trainer_state.json, which cw-grpo report reads
    trainer.save_model(str(Path(config.output_dir) / "model"))


if __name__ == "__main__":
    main()
