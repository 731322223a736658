"""verl's own main_ppo, ended and started again."""

import os
import shutil
import signal

import pytest
from e2e import assert_logged, assert_right, finish, quickstart, saved_step, trainer_processes
from interpreter import wait_until

from cw_plugin.records.read import read_tokens

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def legacy_run(tmp_path_factory):
    """Ended by Ctrl-C after its first checkpoint, and resumed; its command and the metrics of the second part."""
    run = tmp_path_factory.mktemp("e2e") / "legacy"
    command = ["trainer.use_v1=False", "trainer.save_freq=1"]
    process = quickstart(run, *command, STEPS="2")
    wait_until(lambda: saved_step(run / "checkpoints"), run / "stdout", process, 500)
    assert len(trainer_processes(run)) > 5
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    assert process.wait(timeout=60) == -signal.SIGINT
    assert not trainer_processes(run)
    last = saved_step(run / "checkpoints") + 1
    return run, command, last, finish(run, quickstart(run, *command, STEPS=str(last)))


def test_the_legacy_trainer_ended_by_ctrl_c_resumes(legacy_run):
    """The same rollouts cannot be replayed there; weights, metrics and records are checked as V1's are."""
    run, _, last, records = legacy_run
    assert [record["step"] for record in records] == [last]  # not from the first step again
    assert_right(run)
    assert_logged(records)
    assert read_tokens(run / "checkpoints")[0].step == 1


def test_a_finished_run_is_neither_deleted_nor_mislabelled(legacy_run, tmp_path):
    """A copy of it, whose paths are where it lies; the same command is a success, another method is refused."""
    finished, command, last, _ = legacy_run
    run = tmp_path / "copy"
    shutil.copytree(finished, run)
    saved = {path: path.read_bytes() for path in run.rglob("*") if path.is_file() and "report" not in path.parts}
    assert quickstart(run, *command, STEPS=str(last)).wait(timeout=120) == 0
    said = (run / "stdout").read_text()
    assert f"{run} is at its last step, {last}. It goes on" in said and "tables and figures" in said
    assert quickstart(run, *command, STEPS=str(last), METHOD="grpo").wait(timeout=120) == 2
    assert "\n  algorithm.adv_estimator was cw_grpo, is grpo\n" in (run / "stdout").read_text()
    changed = {path.name for path, content in saved.items() if path.read_bytes() != content}
    assert changed <= {"stdout", ".lock", "report.log"}


@pytest.mark.slow
def test_after_kill_9_the_same_command_resumes_and_finishes(tmp_path):
    run = tmp_path / "killed"
    process = quickstart(run, "trainer.save_freq=1", STEPS="5")
    wait_until(lambda: saved_step(run / "checkpoints") >= 2, run / "stdout", process, 500)
    workers = [p for p in trainer_processes(run) if "WorkerDict" in " ".join(p.cmdline())]
    assert workers
    for worker in workers:
        worker.send_signal(signal.SIGKILL)
    assert process.wait(timeout=300) != 0
    assert not trainer_processes(run), "processes of the killed run are left"
    saved = saved_step(run / "checkpoints")
    another = quickstart(run, "trainer.save_freq=1", STEPS="5", SEED="2")  # would go on from the weights of seed 1
    assert another.wait(timeout=120) == 2
    assert "\n  data.seed was 1, is 2\n" in (run / "stdout").read_text()
    records = finish(run, quickstart(run, "trainer.save_freq=1", STEPS="5"))
    assert [record["step"] for record in records] == list(range(saved + 1, 6))
