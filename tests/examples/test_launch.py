"""A run's processes, its folder, and what launch.py prints of it, with a small program in the place of main_ppo."""

import pytest

pytest.importorskip("verl")

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
from interpreter import PATIENCE, ROOT, wait_until

LAUNCH = ROOT / "examples" / "launcher" / "launch.py"
SEED = "+data.seed=1"
MODEL = "+model={a: 1, b: [x, y]}"
BACKEND = "+actor_rollout_ref.rollout.engine_kwargs.vllm.distributed_executor_backend=mp"

# What main_ppo leaves behind: hydra's folder, metrics, a checkpoint every second step and at the end. With CRASH=N it
# ends after that step, with WAIT=N it waits there, beside a daemon that nothing ties to it. FIRST is added to the
# metrics before its first step.
TRAINER = """
import json, os, subprocess, time
from pathlib import Path
import hydra

@hydra.main(config_path=None, version_base=None)
def main(config):
    run = Path(config.trainer.default_local_dir)
    tracker = run / "latest_checkpointed_iteration.txt"
    first = int(tracker.read_text()) if tracker.exists() else 0
    with open(run / "metrics.jsonl", "w") as metrics:
        for step in range(first + 1, config.trainer.total_training_steps + 1):
            print("training step", step, os.environ.get("SAID", ""), flush=True)
            if step % 2 == 0 or step == config.trainer.total_training_steps:
                (run / f"global_step_{step}").mkdir(exist_ok=True)
                tracker.write_text(str(step))
            if step == 1:
                metrics.write(os.environ.get("FIRST", ""))
            metrics.write(json.dumps({"step": step, "data": {"training/global_step": step}}) + "\\n")
            metrics.flush()
            if os.environ.get("WAIT") == str(step):
                daemon = "setsid sleep 300 & echo $! > daemon.pid"
                subprocess.run(daemon, shell=True, cwd=run, env={}, check=True)
                time.sleep(300)
            if os.environ.get("CRASH") == str(step):
                os._exit(int(os.environ["CODE"]))

main()
"""


def command(trainer: Path, run: Path, *overrides: str, steps: int = 4) -> list[str]:
    return [
        *(sys.executable, str(LAUNCH), str(run), sys.executable, str(trainer)),
        *(f"+trainer.default_local_dir='{run}'", f"hydra.run.dir='{run}/hydra'"),
        *(f"+trainer.total_training_steps={steps}", *overrides),
    ]


def launched(*arguments, crash: int = 0, code: int = 3, env=None, **settings) -> subprocess.CompletedProcess:
    environment = os.environ | {"CRASH": str(crash), "CODE": str(code)} | (env or {})
    return subprocess.run(command(*arguments, **settings), env=environment, capture_output=True, text=True)


def contents(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


def trained(run: Path) -> list[int]:
    """The steps of every start, one after another."""
    files = [*sorted(run.glob("metrics.?.jsonl")), run / "metrics.jsonl"]
    return [json.loads(line)["step"] for file in files for line in file.read_text().splitlines()]


@pytest.fixture
def trainer(tmp_path: Path) -> Path:
    path = tmp_path / "trainer.py"
    path.write_text(TRAINER)
    return path


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return tmp_path / "runs" / "one"


def heed_signals() -> None:
    """As in a terminal; nohup, and a shell in the background, have their children ignore these."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


@pytest.fixture
def waiting(trainer: Path, run: Path, tmp_path) -> Iterator[tuple[subprocess.Popen, list[psutil.Process]]]:
    """A launcher whose run has got to its third step, and what runs below it: a daemon, the trainer, launch.py after it
    has put supervise.py in its place, and the guard."""
    env, errors = os.environ | {"WAIT": "3"}, subprocess.STDOUT
    with open(tmp_path / "printed", "w") as out:
        words = command(trainer, run, SEED)
        launcher = subprocess.Popen(words, env=env, stdout=out, stderr=errors, preexec_fn=heed_signals)
    pid = run / "daemon.pid"
    wait_until(lambda: pid.exists() and pid.read_text(), "the daemon did not start")
    (guard,) = psutil.Process(launcher.pid).children()
    (launch,) = guard.children()
    main = min(launch.children(), key=lambda process: process.create_time())
    processes = [psutil.Process(int(pid.read_text())), main, launch, guard]
    yield launcher, processes
    launcher.kill()
    launcher.wait()
    assert not psutil.wait_procs(processes, timeout=PATIENCE)[1]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGHUP])  # test_stop.py has others
def test_the_run_ends_with_its_launcher_and_the_same_command_goes_on(waiting, trainer, run, number):
    launcher, (*processes, _) = waiting
    log = (run / "train.log").read_text()
    launcher.send_signal(number)
    assert launcher.wait() == -number
    # At once, while what is left is being ended.
    again = subprocess.Popen(command(trainer, run, SEED, "+trainer.save_freq=1"), stdout=subprocess.PIPE, text=True)
    wait_until(lambda: (run / "train.0.log").exists(), "the second start did not begin")
    assert not any(process.is_running() for process in processes)  # the folder had its owner until then
    assert "going on after step 2" in again.communicate()[0]
    assert (run / "train.0.log").read_text() == log and trained(run) == [1, 2, 3, 3, 4]


def test_a_second_run_is_refused_and_the_first_ends_with_its_guard(waiting, trainer, run, tmp_path):
    launcher, processes = waiting
    before = contents(run)
    result = launched(trainer, run, SEED)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith(f"{run} is in use by process {launcher.pid} on ")
    assert contents(run) == before and all(process.is_running() for process in processes)
    guard = processes.pop()  # `pkill -f launch.py` and `pkill -f main_ppo` are what a user would try
    assert not {"launch.py", "trainer"} & set(re.split(r"[/ ]", " ".join(guard.cmdline())))
    guard.terminate()
    with pytest.raises(psutil.TimeoutExpired):
        guard.wait(timeout=2)  # long enough for a process that obeys
    guard.kill()
    assert launcher.wait() == 128 + signal.SIGKILL
    assert not any(process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in processes)
    assert "run_guarded.py was killed, and with it what it ran" in (tmp_path / "printed").read_text()
    assert "going on after step 2" in launched(trainer, run, SEED).stdout


def test_what_is_wrong_with_a_run_is_said_once(trainer, run):
    """A reward that fails, a first step from which nothing can be learned; a damaged metrics file ends nothing."""
    data = {"response_length/clip_ratio": 1.0, "critic/advantages/max": 0.0, "critic/advantages/min": -0.0}
    first = {"step": 1, "data": {"training/global_step": 1, "critic/score/mean": 0.5} | data}
    damaged = 'oops\n"text"\n{"step": 1\n'
    said = {"SAID": "cw_plugin: the reward failed, and verl drops the rollouts"}
    printed = launched(trainer, run, SEED, env={"FIRST": damaged + json.dumps(first) + "\n"} | said).stdout
    warnings = sorted(line for line in printed.splitlines() if "WARNING" in line)
    for warning, word in zip(
        warnings, ("the reward failed", "cut at data.max_response", "nothing can be"), strict=True
    ):
        assert word in warning
    assert "step   4" in printed
    unreadable = '{"step": 1, "data": {"training/global_step": 1, "actor/entropy": "NaN"}}\n'
    result = launched(trainer, run.with_name("other"), SEED, env={"FIRST": unreadable}, crash=3)
    assert result.returncode == 3 and "progress is no longer shown (ValueError" in result.stdout


@pytest.fixture
def finished(trainer: Path, run: Path) -> dict[str, str]:
    result = launched(trainer, run, SEED, MODEL)
    assert (result.returncode, result.stderr) == (0, "") and trained(run) == [1, 2, 3, 4]
    return contents(run)


def test_a_finished_run_trains_nothing_and_goes_on_with_more_steps(trainer, run, finished):
    result = launched(trainer, run, MODEL, SEED, "+trainer.logger=[console]")
    assert f"{run} is at its last step, 4" in result.stdout
    assert contents(run).keys() == finished.keys()
    said = launched(trainer, run, SEED, MODEL, BACKEND, "+trainer.save_freq=1", steps=6).stdout
    assert "going on after step 4" in said
    assert trained(run) == [1, 2, 3, 4, 5, 6]
    after = contents(run)
    assert after["train.0.log"] == finished["train.log"] and after["metrics.0.jsonl"] == finished["metrics.jsonl"]
    (run / "metrics.0.jsonl").unlink()  # by the user
    launched(trainer, run, SEED, MODEL, steps=8)
    assert contents(run)["train.1.log"] == after["train.log"]
    result = launched(trainer, run, SEED, MODEL, steps=10, crash=9, code=0)
    assert result.returncode == 0 and f"{run} has ended at step 9 of 10, and is not finished.\n" in result.stdout


def test_a_run_without_its_last_metrics_or_checkpoint_is_not_finished(trainer, run, finished):
    """verl validates after the last checkpoint, and then logs the step."""
    metrics = run / "metrics.jsonl"
    metrics.write_text("".join(metrics.read_text().splitlines(keepends=True)[:-1]))
    assert "going on after step 4" in launched(trainer, run, SEED, MODEL).stdout
    (run / "latest_checkpointed_iteration.txt").write_text("2")  # as if the run had saved every second step, until 3
    assert "is at its last step" in launched(trainer, run, SEED, MODEL, steps=3).stdout  # nothing shall be saved
    assert "going on after step 2" in launched(trainer, run, SEED, MODEL, "+trainer.save_freq=2", steps=3).stdout


def test_a_run_that_began_at_another_ones_checkpoint_goes_on_from_its_own(trainer, run, finished):
    """verl's way to go on under other settings, elsewhere. Over checkpoints of its own it would train them anew."""
    begin = ("+trainer.resume_mode=resume_path", f"+trainer.resume_from_path='{run}/global_step_4'")
    other = run.with_name("other")
    assert launched(trainer, other, *begin, crash=3).returncode == 3
    before = contents(other).keys()
    said = launched(trainer, other, *begin).stderr
    assert f"would write over the run in {other}" in said
    assert contents(other).keys() == before
    assert "going on after step 2" in launched(trainer, other).stdout
    assert trained(other) == [1, 2, 3, 3, 4]


def test_other_settings_are_refused_and_nothing_is_touched(trainer, run, finished):
    result = launched(trainer, run, "+data.seed=2", steps=6)
    assert (result.returncode, result.stdout) == (2, "")
    for changed in ("data.seed was 1, is 2", "model.a was 1, is verl's default", "model.b was ['x', 'y'], is "):
        assert changed in result.stderr
    after = contents(run)
    assert after.pop(".lock") != finished.pop(".lock") and after == finished
    (run / "hydra" / ".hydra" / "overrides.yaml").write_text("- [")
    said = launched(trainer, run, SEED, MODEL, steps=6).stderr
    assert "does not hold the settings of its run" in said and "Traceback" not in said
    shutil.rmtree(run / "hydra")
    assert "holds results, but not their settings" in launched(trainer, run, SEED).stderr


def test_a_run_that_is_begun_anew_keeps_what_was_there(trainer, run):
    """Refused by hydra before it began, then killed before its first checkpoint."""
    assert launched(trainer, run, "++oops/").returncode == 1
    assert launched(trainer, run, SEED, crash=1).returncode == 3
    (run / "validation").mkdir()
    (run / "validation" / "0.jsonl").write_text("answers\n")
    assert "data.seed was 1, is 2" in launched(trainer, run, "+data.seed=2", crash=1).stderr
    assert "] starting; all output" in launched(trainer, run, SEED, crash=1).stdout
    assert trained(run) == [1, 1] and (run / "validation.0" / "0.jsonl").read_text() == "answers\n"


def test_what_verl_sets_by_default_may_be_said(tmp_path, monkeypatch):
    """And memory is no setting, unless the loss takes statistics over a micro-batch."""
    monkeypatch.syspath_prepend(LAUNCH.parent)
    from run_folder import changed, parse

    loss, tokens = "actor_rollout_ref.actor.policy_loss.loss_mode", "actor_rollout_ref.actor.ppo_max_token_len_per_gpu"
    (tmp_path / "config.yaml").write_text("data: {seed: 1}\na: 1.0e-6\n")

    def compare(before: list[str], now: list[str]) -> dict:
        (tmp_path / "overrides.yaml").write_text(json.dumps(before))
        return changed(tmp_path, parse(now))

    assert compare(["+a=1e-6", "+b='x'"], ["data.seed=1", "+b=y", "++b=x", "a=0.000001"]) == {}
    assert compare(["+a=1e-6"], ["a=0.000001", "data.seed=2"]) == {"data.seed": (1, 2)}
    weights = "algorithm.cw_grpo.weights"
    assert compare([], [f"+{weights}=none"]) == {weights: ("verl's default", "none")}
    assert compare([f"+{tokens}=4"], [f"{tokens}=2"]) == {}
    for mode in ("clip_cov", "cw_grpo"):
        assert compare([f"+{tokens}=4", f"+{loss}={mode}"], [f"{tokens}=2", f"{loss}={mode}"]) == {tokens: (4, 2)}


def test_folders_that_cannot_be_used_are_refused_in_a_sentence(tmp_path):
    def refusal(*arguments: str | Path) -> str:
        result = subprocess.run([sys.executable, LAUNCH, *arguments], capture_output=True, text=True)
        assert (result.returncode, result.stdout, result.stderr.count("\n")) == (2, "", 1)
        return result.stderr

    link = tmp_path / "link"
    link.symlink_to(tmp_path / "gone")
    assert "a link to a folder that is not there" in refusal(link, "true")
    assert "cannot be written" in refusal("/proc/foo", "true")
    assert "'+a={' is not an override" in refusal(tmp_path / "new", "true", "+a={")
    (tmp_path / "latest_checkpointed_iteration.txt").touch()
    assert "iteration.txt holds ''" in refusal(tmp_path, "true")
    assert "usage" in refusal(tmp_path)
    for steps in ("0", "many"):
        assert f"steps is {steps}" in refusal(tmp_path, "true", f"trainer.total_training_steps={steps}")
