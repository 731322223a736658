"""A run's folder and its processes, with a small program in the place of main_ppo; and whose environment is removed."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).parent.parent
LAUNCH = ROOT / "examples" / "launch.py"
SEED = "+data.seed=1"
MODEL = "+model={a: 1, b: [x, y]}"

# What main_ppo leaves behind: hydra's folder, metrics, a checkpoint every second step and at the end. With CRASH=N it
# ends after that step, with WAIT=N it waits there, beside a daemon that nothing ties to it.
TRAINER = '''
import json, os, subprocess, sys, time
from pathlib import Path
import hydra

DAEMON = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        open(sys.argv[1], "w").write(str(os.getpid()))
        time.sleep(300)
"""

@hydra.main(config_path=None, version_base=None)
def main(config):
    run = Path(config.trainer.default_local_dir)
    tracker = run / "latest_checkpointed_iteration.txt"
    first = int(tracker.read_text()) if tracker.exists() else 0
    with open(run / "metrics.jsonl", "w") as metrics:
        for step in range(first + 1, config.trainer.total_training_steps + 1):
            print("training step", step, flush=True)
            if step % 2 == 0 or step == config.trainer.total_training_steps:
                (run / f"global_step_{step}").mkdir(exist_ok=True)
                tracker.write_text(str(step))
            metrics.write(json.dumps({"step": step, "data": {"training/global_step": step}}) + "\\n")
            metrics.flush()
            if os.environ.get("WAIT") == str(step):
                subprocess.run([sys.executable, "-c", DAEMON, run / "daemon.pid"], env={}, check=True)
                time.sleep(300)
            if os.environ.get("CRASH") == str(step):
                os._exit(int(os.environ["CODE"]))

main()
'''


@pytest.fixture
def trainer(tmp_path: Path) -> Path:
    path = tmp_path / "trainer.py"
    path.write_text(TRAINER)
    return path


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return tmp_path / "runs" / "one"


def command(trainer: Path, run: Path, *overrides: str, steps: int = 4, flags: tuple[str, ...] = ()) -> list[str]:
    return [
        *(sys.executable, str(LAUNCH), *flags, str(run), sys.executable, str(trainer)),
        *(f"+trainer.default_local_dir='{run}'", f"hydra.run.dir='{run}/hydra'"),
        *(f"+trainer.total_training_steps={steps}", *overrides),
    ]


def launched(*arguments, crash: int = 0, code: int = 3, **settings) -> subprocess.CompletedProcess:
    environment = os.environ | {"CRASH": str(crash), "CODE": str(code)}
    return subprocess.run(command(*arguments, **settings), env=environment, capture_output=True, text=True, timeout=120)


def contents(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


def trained(run: Path) -> list[int]:
    """The steps of every start, one after another."""
    files = [*sorted(run.glob("metrics.?.jsonl")), run / "metrics.jsonl"]
    return [json.loads(line)["step"] for file in files for line in file.read_text().splitlines()]


def wait_for(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def test_the_same_command_goes_on_in_whatever_order_its_settings_stand(trainer, run):
    assert launched(trainer, run, SEED, "+a='x'", crash=3).returncode == 3
    assert not (run / "finished").exists()
    result = launched(trainer, run, "+a=y", "++a=x", SEED)
    assert result.returncode == 0 and "going on after step 2" in result.stdout
    assert trained(run) == [1, 2, 3, 3, 4] and (run / "finished").exists()


@pytest.fixture
def finished(trainer: Path, run: Path) -> dict[str, str]:
    result = launched(trainer, run, SEED, MODEL)
    assert (result.returncode, result.stderr) == (0, "")
    assert (run / "finished").exists() and trained(run) == [1, 2, 3, 4]
    return contents(run)


def test_a_run_at_its_last_step_is_a_success_and_trains_nothing(trainer, run, finished):
    result = launched(trainer, run, MODEL, SEED, "+trainer.logger=[console]")
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout == f"{run} is at its last step, 4: nothing is left to train.\n"
    assert contents(run).keys() == finished.keys()
    assert trained(run) == [1, 2, 3, 4]


def test_more_steps_go_on_and_older_files_are_kept(trainer, run, finished):
    result = launched(trainer, run, SEED, MODEL, "+trainer.save_freq=1", steps=6)
    assert result.returncode == 0 and "going on after step 4" in result.stdout
    assert trained(run) == [1, 2, 3, 4, 5, 6]
    after = contents(run)
    assert after["train.0.log"] == finished["train.log"] and after["metrics.0.jsonl"] == finished["metrics.jsonl"]
    (run / "metrics.0.jsonl").unlink()  # by the user
    launched(trainer, run, SEED, MODEL, "+trainer.save_freq=1", steps=7)
    launched(trainer, run, SEED, MODEL, "+trainer.save_freq=1", steps=8)
    assert contents(run)["train.1.log"] == after["train.log"] and trained(run) == [5, 6, 7, 8]


def test_a_run_that_began_at_another_ones_checkpoint_goes_on_from_its_own(trainer, run, finished):
    """verl's way to go on under other settings, elsewhere. Over checkpoints of its own it would train them anew."""
    begin = ("+trainer.resume_mode=resume_path", f"+trainer.resume_from_path='{run}/global_step_4'")
    other = run.with_name("other")
    assert launched(trainer, other, *begin, crash=3).returncode == 3
    before = contents(other)
    result = launched(trainer, other, *begin)
    assert result.returncode == 2
    assert result.stderr == (
        f"trainer.resume_mode=resume_path would write over the run in {other}: leave it out to go on, or name another "
        "folder with RUN=... for a new run.\n"
    )
    assert contents(other).keys() == before.keys()
    assert "going on after step 2" in launched(trainer, other).stdout


OTHERS = {
    "data.seed was 1, is 2": ("+data.seed=2", MODEL),
    "model was {'a': 1, 'b': ['x', 'y']}, is {'a': 1, 'b': ['x', 'z']}": (SEED, "+model={a: 1, b: [x, z]}"),
    "model was {'a': 1, 'b': ['x', 'y']}, is verl's default": (SEED,),
    "algorithm.cw_grpo.kernel was verl's default, is none": (SEED, MODEL, "+algorithm.cw_grpo.kernel=none"),
}


@pytest.mark.parametrize("steps", [4, 6])
def test_other_settings_are_refused_and_nothing_is_touched(trainer, run, finished, steps):
    for difference, overrides in OTHERS.items():
        result = launched(trainer, run, *overrides, steps=steps, flags=("--knob", "OUT"))
        assert (result.returncode, result.stdout) == (2, "")
        assert result.stderr == (
            f"{run} holds a run with other settings (step 4):\n  {difference}\n"
            "Use the previous settings to resume it, or name another folder with OUT=... for a new run.\n"
        )
        after = contents(run)
        assert after.pop(".lock") != finished[".lock"]
        assert after == {name: text for name, text in finished.items() if name != ".lock"}


def test_finished_is_written_by_a_run_that_is(trainer, run):
    result = launched(trainer, run, SEED, crash=3, code=0)
    assert result.returncode == 0 and f"{run} has ended at step 3 of 4, and is not finished.\n" in result.stdout
    assert not (run / "finished").exists()
    (run / "metrics.jsonl").unlink()  # as if killed between the last checkpoint and what is done after it
    assert launched(trainer, run, SEED, steps=2).returncode == 0
    assert trained(run) == [] and (run / "finished").exists()


def test_results_without_settings_are_refused_and_a_folder_without_results_is_free(trainer, run, finished):
    shutil.rmtree(run / "hydra")
    result = launched(trainer, run, SEED)
    assert result.returncode == 2 and "holds results, but not their settings" in result.stderr
    other = run.with_name("other")
    assert launched(trainer, other, "++oops/").returncode == 1  # hydra refuses it
    assert launched(trainer, other, SEED).returncode == 0
    assert launched(trainer, other, "+a={").returncode == 2


def test_a_run_that_is_begun_anew_keeps_what_was_there(trainer, run):
    """Killed before its first checkpoint."""
    assert launched(trainer, run, SEED, crash=1).returncode == 3
    (run / "validation").mkdir()
    (run / "validation" / "0.jsonl").write_text("answers\n")
    result = launched(trainer, run, "+data.seed=2", crash=1)
    assert result.returncode == 2 and "data.seed was 1, is 2" in result.stderr
    result = launched(trainer, run, SEED, crash=1)
    assert "] starting; all output" in result.stdout
    assert trained(run) == [1, 1]
    assert (run / "validation.0" / "0.jsonl").read_text() == "answers\n"


def test_what_verl_sets_by_default_may_be_said(tmp_path):
    """And memory is no setting, unless the loss takes statistics over a micro-batch."""
    code = (
        "import sys; from pathlib import Path; from run_folder import differences, parse\n"
        "print(list(differences(Path(sys.argv[1]), parse(sys.argv[2:]))))"
    )
    loss, tokens = "actor_rollout_ref.actor.policy_loss.loss_mode", "actor_rollout_ref.actor.ppo_max_token_len_per_gpu"

    def compare(before: list[str], now: list[str]) -> str:
        folder = tmp_path / "run" / ".hydra"
        main = [sys.executable, "-c", "import hydra; hydra.main(config_path=None, version_base=None)(lambda _: 0)()"]
        subprocess.run([*main, f"hydra.run.dir='{folder.parent}'", "+data.seed=1", *before], check=True, timeout=60)
        # As if the configuration itself had said so.
        (folder / "overrides.yaml").write_text((folder / "overrides.yaml").read_text().replace("- +data.seed=1\n", ""))
        path = {"PYTHONPATH": str(LAUNCH.parent)}
        script = [sys.executable, "-c", code, str(folder), *now]
        return subprocess.run(script, env=os.environ | path, capture_output=True, text=True, timeout=60).stdout.strip()

    assert compare(["+a=1e-6"], ["a=0.000001", "data.seed=1"]) == "[]"
    assert compare(["+a=1e-6"], ["a=0.000001", "data.seed=2"]) == "['data.seed was 1, is 2']"
    assert compare([f"+{tokens}=4"], [f"{tokens}=2"]) == "[]"
    for mode in ("clip_cov", "cw_grpo"):
        assert "was 4, is 2" in compare([f"+{tokens}=4", f"+{loss}={mode}"], [f"{tokens}=2", f"{loss}={mode}"])


def test_show_passes_the_output_through_and_check_runs_nothing(trainer, run):
    result = launched(trainer, run, SEED, flags=("--check",))
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
    result = launched(trainer, run, SEED, flags=("--show",))
    assert "training step 4\n" in result.stdout and not (run / "train.log").exists() and (run / "finished").exists()
    result = launched(trainer, run, "+data.seed=2", flags=("--check",))
    assert result.returncode == 2 and "data.seed was 1, is 2" in result.stderr


def heed_signals() -> None:
    """As in a terminal; nohup, and a shell in the background, have their children ignore these."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


@pytest.fixture
def waiting(trainer: Path, run: Path) -> Iterator[tuple[subprocess.Popen, list[psutil.Process]]]:
    """A launcher whose run has got to its third step, and all processes of the run."""
    launcher = subprocess.Popen(
        command(trainer, run, SEED),
        env=os.environ | {"WAIT": "3"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        preexec_fn=heed_signals,
    )
    pid = run / "daemon.pid"
    wait_for(lambda: pid.exists() and pid.read_text(), "the daemon did not start")
    processes = [psutil.Process(int(pid.read_text()))]
    processes += [p for p in psutil.process_iter() if str(trainer) in (cmdline(p)) and p.pid != launcher.pid]
    assert len(processes) == 2
    yield launcher, processes
    launcher.kill()
    launcher.wait()
    assert not psutil.wait_procs(processes, timeout=30)[1]


def cmdline(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGHUP, signal.SIGTERM, signal.SIGINT])
def test_the_run_ends_with_its_launcher_and_the_same_command_goes_on(waiting, trainer, run, number):
    launcher, processes = waiting
    log = (run / "train.log").read_text()
    launcher.send_signal(number)
    code = launcher.wait(timeout=60)
    assert code == (130 if number in (signal.SIGTERM, signal.SIGINT) else -number)
    # At once, while what is left is being ended.
    again = subprocess.Popen(command(trainer, run, SEED, "+trainer.save_freq=1"), stdout=subprocess.PIPE, text=True)
    wait_for(lambda: (run / "train.0.log").exists(), "the second start did not begin")
    assert not any(process.is_running() for process in processes)  # the folder had its owner until then
    assert not (run / "finished").exists()
    assert "going on after step 2" in again.communicate(timeout=60)[0]
    assert (run / "train.0.log").read_text() == log
    assert trained(run) == [1, 2, 3, 3, 4] and (run / "finished").exists()


def test_a_second_run_in_the_folder_is_told_who_has_it(waiting, trainer, run):
    launcher, processes = waiting
    before = contents(run)
    result = launched(trainer, run, SEED)
    assert (result.returncode, result.stdout) == (2, "")
    assert re.fullmatch(
        rf"{re.escape(str(run))} is in use by process {launcher.pid} on \S+: wait until it has ended, or name another "
        r"folder with RUN=\.\.\.\n",
        result.stderr,
    )
    assert contents(run) == before and all(process.is_running() for process in processes)


def test_the_studys_runs_end_with_it(trainer, run, tmp_path):
    """kill -9 of study.py ends launch.py, and that its run."""
    study = tmp_path / "study"
    study.mkdir()
    (study / "train.sh").write_text(f"WAIT=3 exec {shlex.join(command(trainer, run, SEED))}\n")
    code = (
        "import sys, time, study; from pathlib import Path\n"
        f"study.HERE = Path({str(study)!r})\n"
        "study.start(study.Job('main', 'cw_grpo', '1e-5', 1, 4)); time.sleep(300)"
    )
    environment = os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'examples' / 'study'}", "WORK": str(tmp_path / "work")}
    process = subprocess.Popen([sys.executable, "-c", code], env=environment)
    pid = run / "daemon.pid"
    wait_for(lambda: pid.exists() and pid.read_text(), "the daemon did not start")
    left = [psutil.Process(int(pid.read_text())), *psutil.Process(process.pid).children(recursive=True)]
    assert len(left) > 3
    process.kill()
    process.wait()
    assert not psutil.wait_procs(left, timeout=60)[1]


def test_the_guard_is_not_ended_by_name(waiting):
    """`pkill -f launch.py` and `pkill -f main_ppo` are what a user would try."""
    launcher, _ = waiting
    (guard,) = psutil.Process(launcher.pid).children()
    assert not {"launch.py", "trainer"} & set(re.split(r"[/ ]", " ".join(guard.cmdline())))
    guard.terminate()
    with pytest.raises(psutil.TimeoutExpired):
        guard.wait(timeout=2)


def test_the_entropy_curves_command_can_be_pasted(tmp_path):
    run = tmp_path / "it's a run = $HOME"
    (run / "tensorboard").mkdir(parents=True)
    for name, step in (("metrics.0.jsonl", 1), ("metrics.jsonl", 2)):  # of two starts
        data = {"actor/entropy": 0.5, "training/global_step": step, "val-core/x/acc/mean@2": step / 4}
        (run / name).write_text(json.dumps({"step": step, "data": data}) + "\n")
    summary = [sys.executable, ROOT / "examples" / "cpu" / "summary.py", run]
    printed = subprocess.run(summary, capture_output=True, text=True, check=True, timeout=120).stdout
    (line,) = [line for line in printed.splitlines() if line.startswith("entropy curve")]
    assert shlex.split(line.removeprefix("entropy curve"))[1:] == ["--logdir", f"{run}/tensorboard"]
    assert "│ right answers │  0.250 │  0.500 │" in printed
    assert [row.split("│")[1].strip() for row in printed.splitlines() if row.startswith("│    ")] == ["1", "2"]


def test_what_is_written_by_default_is_ignored_by_git():
    written = [
        "report/report.html",
        "evaluation/a/aime24.jsonl",
        "runs/a/train.log",
        "checkpoints/cw_grpo/a/metrics.jsonl",
    ]
    ignored = subprocess.run(["git", "check-ignore", *written], cwd=ROOT, capture_output=True, text=True).stdout.split()
    assert ignored == written
    package = ["git", "check-ignore", "--no-index", "cw_plugin/evaluation/run.py"]
    assert subprocess.run(package, cwd=ROOT).returncode == 1


@pytest.mark.parametrize(
    ("stamp", "said"),
    [
        (None, "nothing in it says that this clone"),
        ("", "nothing in it says that this clone"),
        ("c87252dc624829ca\n", "nothing in it says that this clone"),  # as older versions wrote it
        ("unfinished\n", "nothing in it says that this clone"),
        ("unfinished\n/another/clone\n", "was made by the clone /another/clone, and this one is"),
        ("c87252dc624829ca\n/another/clone\n", "was made by the clone /another/clone, and this one is"),
    ],
)
@pytest.mark.parametrize("link", [False, True])
def test_an_environment_that_this_clone_did_not_make_is_left_alone(tmp_path, stamp, said, link):
    theirs = tmp_path / "venv"
    (theirs / "bin").mkdir(parents=True)
    (theirs / "bin" / "python").write_text("precious")
    if stamp is not None:
        (theirs / ".cw_plugin_cpu").write_text(stamp)
    named = theirs
    if link:
        named = tmp_path / "link"
        named.symlink_to(theirs)
    before = contents(theirs)
    result = install(named)
    assert result.returncode == 1 and result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert str(named) in line and said in line and str(ROOT.resolve()) in line and "VENV=" in line
    assert contents(theirs) == before


def test_an_environment_of_this_clone_is_replaced(tmp_path):
    """As far as that goes without a package index."""
    ours = tmp_path / "venv"
    ours.mkdir()
    (ours / "old").touch()
    (ours / ".cw_plugin_cpu").write_text(f"c87252dc624829ca\n{ROOT.resolve()}\n")
    result = install(ours, PIP_NO_INDEX="1", PIP_CONFIG_FILE=os.devnull)
    assert 'failed at "install torch' in result.stderr
    assert (ours / ".cw_plugin_cpu").read_text() == f"unfinished\n{ROOT.resolve()}\n"
    assert (ours / "bin" / "python").exists() and not (ours / "old").exists()


def install(venv: Path, **more: str) -> subprocess.CompletedProcess:
    environment = os.environ | {"PYTHON": sys.executable} | more
    script = ["bash", str(ROOT / "examples" / "cpu" / "install.sh"), str(venv)]
    return subprocess.run(script, env=environment, capture_output=True, text=True, timeout=120)
