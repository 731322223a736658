"""A program: run a training command in its own folder. When this process ends, so do the command's processes.

    python launch.py FOLDER COMMAND...

The command is verl's main_ppo with its overrides, which let it write into FOLDER. What it prints goes to
FOLDER/train.log. A line is shown for every step that verl's logger "file" writes down.

FOLDER has one owner and one set of settings (run_folder.py). The same command resumes its run; a command with other
settings is refused. The exit code is the command's, or 2 where it is refused; SIGTERM and Ctrl-C end this process, too.

A script's supervise.py ends everything after a `kill -9` as well. Without a script, this process starts supervise.py.
"""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from folder_lock import write_error
from processes import LINGER, Stopped, descendants, end_with_parent, ending_descendants
from run_folder import RunFolder, parse, read_steps, refuse

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
PAUSE = 0.5  # seconds between two looks at what the command has written
LAST_LINES = 30  # of its output, shown when it fails


class Progress:
    """Says how a command gets on: the stages of its start, a reward that fails, and a line for each step.

    ``log`` is the file of what the command prints, ``metrics`` that of verl's logger "file".
    """

    def __init__(self, log: Path, metrics: Path, say: Callable[[str], None]) -> None:
        self._log = open(log, errors="replace")  # noqa: SIM115 - it stays open
        self._metrics = metrics
        self._say = say
        self._stages = dict(STAGES)
        self._reward_has_failed = False
        self._steps_said = 0
        self._size = 0

    def update(self) -> None:
        """Say what is new."""
        text = self._log.read()
        for sign in [sign for sign in self._stages if sign in text]:
            self._say(self._stages.pop(sign))
        failure = re.search(r"cw_plugin: the reward failed.*", text)
        if failure and not self._reward_has_failed:  # said once: verl goes on without the answers that it fails on
            self._reward_has_failed = True
            self._say(f"WARNING: {failure[0]}")
        self._say_steps()

    def _say_steps(self) -> None:
        size = self._metrics.stat().st_size if self._metrics.exists() else 0
        if size == self._size:
            return
        self._size = size
        records = read_steps(self._metrics)
        for record in records[self._steps_said :]:
            self._say(describe(record))
            if self._steps_said == 0:
                for warning in warnings(record["data"]):
                    self._say(f"WARNING: in the first step {warning}.")
            self._steps_said += 1


def describe(record: dict[str, Any]) -> str:
    """One line for a step."""
    values = {name: record["data"].get(key) for name, key in SHOWN.items()}
    logged = [f"{name} {value:.3f}" for name, value in values.items() if value is not None]
    return f"step {record['step']:>3}  " + "  ".join(logged)


def warnings(data: dict[str, Any]) -> Iterator[str]:
    """Why nothing can be learned from a step with these metrics."""
    if data.get("response_length/clip_ratio") == 1:
        yield "all responses are cut at data.max_response_length: no answer is complete"
    largest, smallest = data.get("critic/advantages/max"), data.get("critic/advantages/min")
    if largest == 0 and smallest == 0:
        yield f"all rewards of each prompt are equal (mean {data.get('critic/score/mean')}): nothing can be learned"


def watch(process: subprocess.Popen, progress: Progress, say: Callable[[str], None]) -> None:
    """Say how the command gets on, until it ends. A watcher never ends what it watches."""
    try:
        is_running = True
        while is_running:
            time.sleep(PAUSE)
            is_running = process.poll() is None  # asked first, so that the last update sees everything
            progress.update()
    except Stopped:
        say("stopping ...")
        raise
    except Exception as error:
        say(f"progress is no longer shown ({type(error).__name__}: {error})")
        process.wait()


def train(run: RunFolder, command: list[str], log: Path, say: Callable[[str], None]) -> int:
    """Run the command, end what it has left, and return its exit code, which is -N if the signal N ended it."""
    metrics = Path(run.overrides.get(METRICS) or run.path / "metrics.jsonl")
    lock = [run.lock.fileno()]  # which the command holds, too: the folder is in use until it has ended
    with open(log, "xb") as output, ending_descendants():
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=lock,
                preexec_fn=end_with_parent,
            )
        except OSError as error:
            refuse(f"{command[0]} cannot be started: {error.strerror}")
        watch(process, Progress(log, metrics, say), say)
        ended = time.monotonic()
        while descendants() and time.monotonic() < ended + LINGER:
            time.sleep(PAUSE)
    return process.returncode


def main() -> int:
    """Run the command of this process's arguments, and return its exit code."""
    folder, *command = sys.argv[1:] or [""]
    if not command:
        refuse("usage: python launch.py FOLDER COMMAND...")
    started = time.monotonic()

    def say(text: str) -> None:
        minutes, seconds = divmod(int(time.monotonic() - started), 60)
        with suppress(OSError):  # nobody reads it any more
            print(f"[{minutes}:{seconds:02}] {text}", flush=True)

    if sys.stdout:  # None if it is closed
        sys.stdout.reconfigure(errors="backslashreplace")  # a folder's name may have letters that the terminal has not
    run = RunFolder(Path(folder), parse(command[1:]))
    run.protect_results()
    if run.finished:
        print(f"{run.path} is at its last step, {run.steps}. It goes on with a larger number of steps.")
        return 0
    run.keep_older_files()
    log = run.path / "train.log"
    beginning = f"going on after step {run.checkpoint}" if run.checkpoint else "starting"
    say(f"{beginning}; all output goes to {log}")
    try:
        code = train(run, command, log, say)
    except Stopped as stopped:
        stopped.end()
    if code == 0:
        if run.steps is not None and not run.finished:
            print(f"{run.path} has ended at step {run.logged or run.checkpoint} of {run.steps}, and is not finished.")
        return 0
    print("\n".join(log.read_text(errors="replace").splitlines()[-LAST_LINES:]), file=sys.stderr)
    shell_code = code if code > 0 else 128 - code
    killed = "it was killed: perhaps memory ran out" if code == -signal.SIGKILL else None
    cause = write_error(run.path) or killed  # a full disk keeps its own error out of the log
    why = f" ({cause})" if cause else ""
    print(f"The training command failed with exit code {shell_code}{why}; all of its output: {log}", file=sys.stderr)
    return shell_code


if __name__ == "__main__":
    if "CW_PLUGIN_SCRIPT" not in os.environ:  # no script has started this
        supervise = str(Path(__file__).with_name("supervise.py"))
        os.execv(sys.executable, [sys.executable, supervise, sys.executable, *sys.argv])
    sys.exit(main())
