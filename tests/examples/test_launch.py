"""The processes of a run, and what launch.py prints of it, with a small program in the place of main_ppo."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from interpreter import ROOT, python, wait_until
from small_trainer import LAUNCH, SEED, command, contents, launched, trained, write_trainer


@pytest.fixture
def trainer(tmp_path: Path) -> Path:
    return write_trainer(tmp_path)


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
    assert not psutil.wait_procs(processes, timeout=30)[1]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGHUP, signal.SIGTERM])  # test_e2e.py has SIGINT
def test_the_run_ends_with_its_launcher_and_the_same_command_goes_on(waiting, trainer, run, number):
    launcher, (*processes, _) = waiting
    log = (run / "train.log").read_text()
    launcher.send_signal(number)
    assert launcher.wait(timeout=60) == -number
    # At once, while what is left is being ended.
    again = subprocess.Popen(command(trainer, run, SEED, "+trainer.save_freq=1"), stdout=subprocess.PIPE, text=True)
    wait_until(lambda: (run / "train.0.log").exists(), "the second start did not begin")
    assert not any(process.is_running() for process in processes)  # the folder had its owner until then
    assert "going on after step 2" in again.communicate(timeout=60)[0]
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
        guard.wait(timeout=2)
    guard.kill()
    assert launcher.wait(timeout=60) == 128 + signal.SIGKILL
    assert not any(process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in processes)
    assert "run_guarded.py was killed, and with it what it ran" in (tmp_path / "printed").read_text()
    assert "going on after step 2" in launched(trainer, run, SEED).stdout


def test_a_command_that_is_killed_is_said_to_be(waiting, trainer, run, tmp_path):
    launcher, (_, main, *_) = waiting
    main.kill()
    assert launcher.wait(timeout=60) == 128 + signal.SIGKILL
    assert "exit code 137 (it was killed: perhaps memory ran out)" in (tmp_path / "printed").read_text()


def test_the_trainer_ends_when_launcher_and_guard_are_killed(waiting, trainer, run):
    launcher, (daemon, main, launch, guard) = waiting
    lock = str(run / ".lock")
    assert all(lock in os.popen(f"readlink /proc/{pid}/fd/*").read() for pid in (launch.pid, main.pid))
    launcher.send_signal(signal.SIGSTOP)  # so that neither has time for the other
    guard.kill()
    launcher.kill()
    daemon.kill()  # which has closed what it inherited; Ray ends its own daemons
    wait_until(lambda: not main.is_running() or main.status() == psutil.STATUS_ZOMBIE, "the trainer goes on")
    assert "going on after step 2" in launched(trainer, run, SEED).stdout


def test_a_run_that_gets_two_signals_is_ended_all_the_same(tmp_path):
    """Ctrl-C reaches a study and its runs; then the study, ending, tells the runs to end."""
    command = ["sh", "-c", "trap '' INT TERM; sleep 100"]  # takes its time
    process = subprocess.Popen([sys.executable, LAUNCH, tmp_path / "run", *command], preexec_fn=heed_signals)
    wait_until(lambda: len(psutil.Process(process.pid).children(recursive=True)) > 2, "the command did not start")
    children = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGINT)
    time.sleep(1)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=30) == -signal.SIGINT
    assert not psutil.wait_procs(children, timeout=5)[1]


def test_a_child_that_has_ended_is_not_waited_for(monkeypatch):
    """Nobody reaps it where the guard looks for what its command has left."""
    monkeypatch.syspath_prepend(LAUNCH.parent)
    from processes import descendants

    child = subprocess.Popen(["true"])
    wait_until(lambda: psutil.Process(child.pid).status() == psutil.STATUS_ZOMBIE, "it does not end")
    assert child.pid not in descendants()
    child.wait()


def test_what_is_wrong_with_a_run_is_said_once(trainer, run):
    """A reward that fails, a first step from which nothing can be learned; a damaged metrics file ends nothing."""
    data = {"response_length/clip_ratio": 1.0, "critic/advantages/max": 0.0, "critic/advantages/min": -0.0}
    first = {"step": 1, "data": {"training/global_step": 1, "critic/score/mean": 0.5} | data}
    damaged = 'oops\n"text"\n{"step": 1\n'
    said = {"SAID": "cw_plugin: the reward failed, and verl drops the rollouts"}
    printed = launched(trainer, run, SEED, env={"FIRST": damaged + json.dumps(first) + "\n"} | said).stdout
    assert sorted(line.split("] ")[1] for line in printed.splitlines() if "WARNING" in line) == [
        "WARNING: cw_plugin: the reward failed, and verl drops the rollouts",
        "WARNING: in the first step all responses are cut at data.max_response_length: no answer is complete.",
        "WARNING: in the first step all rewards of each prompt are equal (mean 0.5): nothing can be learned.",
    ]
    assert "step   4" in printed
    unreadable = '{"step": 1, "data": {"training/global_step": 1, "actor/entropy": "NaN"}}\n'
    result = launched(trainer, run.with_name("other"), SEED, env={"FIRST": unreadable}, crash=3)
    assert result.returncode == 3 and "progress is no longer shown (ValueError" in result.stdout


def test_the_entropy_curves_command_can_be_pasted(tmp_path):
    run = tmp_path / "it's a run = $HOME"
    (run / "tensorboard").mkdir(parents=True)
    for name, step in (("metrics.0.jsonl", 1), ("metrics.jsonl", 2)):  # of two starts
        data = {"actor/entropy": 0.5, "training/global_step": step, "val-core/x/acc/mean@2": step / 4}
        (run / name).write_text(json.dumps({"step": step, "data": data}) + "\n")
    printed = python(ROOT / "examples" / "cpu" / "summary.py", run).stdout
    (line,) = [line for line in printed.splitlines() if line.startswith("entropy curve")]
    assert shlex.split(line.removeprefix("entropy curve"))[1:] == ["--logdir", f"{run}/tensorboard"]
    assert re.search(r"right answers +0\.250 \(step 1\) +0\.500 \(step 2\)", printed)
