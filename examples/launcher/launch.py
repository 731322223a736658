"""Run a training command in its own folder. When this process ends, for whatever reason, the command's processes end.

python launch.py FOLDER COMMAND...

The command is verl's main_ppo with its overrides, which let it write into FOLDER. What it prints goes to
FOLDER/train.log. A line is shown for every step that verl's logger "file" writes down.

FOLDER has one owner and one set of settings (run_folder.py). The same command resumes its run; a command with other
settings is refused. The exit code is the command's, or 2 where it is refused; SIGTERM and Ctrl-C end this process, too.
"""

import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from run_folder import RunFolder, parse, read_steps, refuse

from cw_plugin.folder_lock import write_error
from cw_plugin.guarded_processes import Stopped, guarded

# What main_ppo prints before the first step -> what to show instead
STAGES = {
    "ray init kwargs": "starting Ray",
    "dataset len:": "loading data and model",
    "LLMServerManager": "vLLM server is up",
    "ready to fit": "everything is loaded",
    "Initial validation metrics": "first training step",
}
SHOWN = {
    "reward": "critic/score/mean",
    "entropy": "actor/entropy",
    "cov before": "cw_grpo/covariance_before",
    "cov after": "cw_grpo/covariance_after",
    "tokens w<0.5": "cw_grpo/downweighted_share",
    "seconds": "timing_s/step",
}
METRICS = "ray_kwargs.ray_init.runtime_env.env_vars.VERL_FILE_LOGGER_PATH"
NO_ROOM = re.compile(r"No space left on device|Disk quota exceeded|Read-only file system")


def describe(record: dict[str, Any]) -> str:
    values = {name: record["data"].get(key) for name, key in SHOWN.items()}
    return f"step {record['step']:>3}  " + "  ".join(f"{k} {v:.3f}" for k, v in values.items() if v is not None)


def warnings(data: dict[str, Any]) -> Iterator[str]:
    """Why nothing can be learned from a step with these metrics."""
    if data.get("response_length/clip_ratio") == 1:
        yield "all responses are cut at data.max_response_length: no answer is complete"
    if data.get("critic/advantages/max") == data.get("critic/advantages/min") == 0:
        yield f"all rewards of each prompt are equal (mean {data.get('critic/score/mean')}): nothing can be learned"


def watch(process: subprocess.Popen, log: Path, metrics: Path, say: Callable[[str], None]) -> None:
    """Say how the command gets on, until it ends."""
    stages, printed, size, told, running = dict(STAGES), 0, -1, False, True
    with open(log, errors="replace") as reader:
        while running:
            time.sleep(0.5)
            running = process.poll() is None
            new = reader.read()
            for text in [text for text in stages if text in new]:
                say(stages.pop(text))
            if not told and (told := re.search(r"cw_plugin: the reward failed.*", new)):  # verl goes on without it
                say(f"WARNING: {told[0]}")
            if size == (size := metrics.stat().st_size if metrics.exists() else -1):
                continue
            for record in (records := read_steps(metrics))[printed:]:
                say(describe(record))
                for text in warnings(record["data"]) if not printed else ():
                    say(f"WARNING: in the first step {text}.")
                printed = len(records)


def main() -> int:
    folder, *command = sys.argv[1:] or [""]
    if not command:
        refuse("usage: python launch.py FOLDER COMMAND...")
    started = time.monotonic()

    def say(text: str) -> None:
        minutes, seconds = divmod(int(time.monotonic() - started), 60)
        with suppress(OSError):  # nobody reads it any more
            print(f"[{minutes}:{seconds:02}] {text}", flush=True)

    run = RunFolder(Path(folder), parse(command[1:]))
    run.refuse_other_settings()
    if run.finished:
        print(f"{run.path} is at its last step, {run.steps}. It goes on with a larger number of steps.")
        return 0
    run.keep_older_files()
    log = run.path / "train.log"
    say((f"going on after step {run.checkpoint}" if run.checkpoint else "starting") + f"; all output goes to {log}")
    metrics = Path(run.overrides.get(METRICS) or run.path / "metrics.jsonl")
    with open(log, "xb") as output:
        try:
            with guarded(command, [run.lock.fileno()], stdout=output, stderr=output) as process:
                try:
                    watch(process, log, metrics, say)
                except Stopped:
                    say("stopping ...")
                    raise
                except Exception as error:  # a watcher never ends what it watches
                    say(f"progress is no longer shown ({type(error).__name__}: {error})")
                    process.wait()
        except Stopped as stopped:
            stopped.end()
    if process.returncode == 0:
        if run.steps is not None and not run.finished:
            print(f"{run.path} has ended at step {run.logged or run.checkpoint} of {run.steps}, and is not finished.")
        return 0
    text = log.read_text(errors="replace")
    print("\n".join(text.splitlines()[-30:]), file=sys.stderr)
    code = process.returncode if process.returncode > 0 else 128 - process.returncode
    ends = {-signal.SIGKILL: "its guard was killed", 128 + signal.SIGKILL: "it was killed: perhaps memory ran out"}
    causes = [write_error(run.path), *NO_ROOM.findall(text)[:1], ends.get(process.returncode)]
    cause = next((f" ({cause})" for cause in causes if cause), "")
    print(f"The training command failed with exit code {code}{cause}; all of its output: {log}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
