"""A run's folder, with a small program in the place of main_ppo."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from interpreter import ROOT
from small_trainer import BACKEND, LAUNCH, MODEL, SEED, contents, launched, trained, write_trainer


@pytest.fixture
def trainer(tmp_path: Path) -> Path:
    return write_trainer(tmp_path)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return tmp_path / "runs" / "one"


@pytest.fixture
def finished(trainer: Path, run: Path) -> dict[str, str]:
    result = launched(trainer, run, SEED, MODEL)
    assert (result.returncode, result.stderr) == (0, "") and trained(run) == [1, 2, 3, 4]
    return contents(run)


def test_a_finished_run_trains_nothing_and_goes_on_with_more_steps(trainer, run, finished):
    result = launched(trainer, run, MODEL, SEED, "+trainer.logger=[console]")
    assert result.stdout == f"{run} is at its last step, 4. It goes on with a larger number of steps.\n"
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


def test_a_run_that_was_killed_in_its_last_validation_goes_on(trainer, run, finished):
    """verl validates after the last checkpoint, and then logs the step."""
    metrics = run / "metrics.jsonl"
    metrics.write_text("".join(metrics.read_text().splitlines(keepends=True)[:-1]))
    assert "going on after step 4" in launched(trainer, run, SEED, MODEL).stdout


def test_a_run_that_is_made_shorter_ends_with_a_checkpoint(trainer, run, finished):
    (run / "latest_checkpointed_iteration.txt").write_text("2")  # as if the run had saved every second step, until 3
    assert "is at its last step" in launched(trainer, run, SEED, MODEL, steps=3).stdout  # nothing shall be saved
    assert "going on after step 2" in launched(trainer, run, SEED, MODEL, "+trainer.save_freq=2", steps=3).stdout


def test_settings_that_cannot_be_read_are_refused_in_a_sentence(trainer, run, finished):
    (run / "hydra" / ".hydra" / "overrides.yaml").write_text("- [")
    result = launched(trainer, run, SEED, MODEL, steps=6)
    assert result.returncode == 2 and f"{run}/hydra/.hydra does not hold the settings of its run (" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_run_that_began_at_another_ones_checkpoint_goes_on_from_its_own(trainer, run, finished):
    """verl's way to go on under other settings, elsewhere. Over checkpoints of its own it would train them anew."""
    begin = ("+trainer.resume_mode=resume_path", f"+trainer.resume_from_path='{run}/global_step_4'")
    other = run.with_name("other")
    assert launched(trainer, other, *begin, crash=3).returncode == 3
    before = contents(other).keys()
    said = launched(trainer, other, *begin).stderr
    assert said.startswith(f"trainer.resume_mode=resume_path would write over the run in {other}: leave it out")
    assert contents(other).keys() == before
    assert "going on after step 2" in launched(trainer, other).stdout
    assert trained(other) == [1, 2, 3, 3, 4]


def test_other_settings_are_refused_and_nothing_is_touched(trainer, run, finished):
    result = launched(trainer, run, "+data.seed=2", steps=6)
    head, *lines, advice = result.stderr.splitlines()
    assert (result.returncode, result.stdout) == (2, "")
    assert head == f"{run} holds a run with other settings (step 4):"
    default = "is verl's default"
    assert lines == ["  data.seed was 1, is 2", f"  model.a was 1, {default}", f"  model.b was ['x', 'y'], {default}"]
    assert advice.startswith("Use the previous settings to resume it, or name another folder")
    after = contents(run)
    assert after.pop(".lock") != finished.pop(".lock") and after == finished
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
    kernel = "algorithm.cw_grpo.kernel"
    assert compare([], [f"+{kernel}=none"]) == {kernel: ("verl's default", "none")}
    assert compare([f"+{tokens}=4"], [f"{tokens}=2"]) == {}
    for mode in ("clip_cov", "cw_grpo"):
        assert compare([f"+{tokens}=4", f"+{loss}={mode}"], [f"{tokens}=2", f"{loss}={mode}"]) == {tokens: (4, 2)}


def test_folders_that_cannot_be_used_are_refused_in_a_sentence(tmp_path):
    def refusal(*arguments: str | Path) -> str:
        result = subprocess.run([sys.executable, LAUNCH, *arguments], capture_output=True, text=True, timeout=60)
        assert (result.returncode, result.stdout, result.stderr.count("\n")) == (2, "", 1)
        return result.stderr

    link = tmp_path / "link"
    link.symlink_to(tmp_path / "gone")
    assert refusal(link, "true").startswith(f"{link} is a file, or a link to a folder that is not there: name")
    assert "cannot be written (No such file or directory)" in refusal("/proc/foo", "true")
    assert refusal(tmp_path / "new", "true", "+a={").startswith("'+a={' is not an override that hydra can read")
    (tmp_path / "latest_checkpointed_iteration.txt").touch()
    assert "iteration.txt holds '': write the step of" in refusal(tmp_path, "true")
    assert refusal(tmp_path).startswith("usage: python launch.py")
    for steps in ("0", "many"):
        said = refusal(tmp_path, "true", f"trainer.total_training_steps={steps}")
        assert said == f"trainer.total_training_steps is {steps}: it must be a whole number above 0.\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small disk")
def test_a_disk_that_is_full_is_said_on_the_terminal(trainer, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", disk], capture_output=True).returncode:
        pytest.skip("cannot mount a small disk here")
    try:
        said = f"{disk / 'run'} cannot be written: No space left on device"
        result = launched(trainer, disk / "run", SEED, env={"FILL": "1"})
        assert result.returncode == 1 and f"({said})" in result.stderr.splitlines()[-1]
        result = launched(trainer, disk / "run", SEED)
        assert result.returncode == 2 and said in result.stderr
    finally:
        subprocess.run(["umount", disk], check=True)


def test_what_is_written_by_default_is_ignored_by_git():
    written = ["report/report.html", "evaluation/a/aime24.jsonl", "runs/a/train.log", "checkpoints/a/metrics.jsonl"]
    command = ["git", "check-ignore", "--no-index", *written, "cw_plugin/lab/evaluation/ask.py"]
    assert subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout.split() == written
