"""verl's other trainers and recipes, the study's runs, and doctor's worker: what else starts Ray, all of it slow."""

import pytest

pytest.importorskip("verl")

import functools
import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import e2e
import pyarrow.parquet as pq
from interpreter import ROOT, bash, python, wait_until
from omegaconf import OmegaConf

from cw_plugin.lab.doctor import workers

pytestmark = pytest.mark.e2e

MEGATRON = sorted(path.name for path in (ROOT / "examples").glob("run_*_megatron.sh"))


def recipe(script: str, out: Path, *settings: str, method: str = "cw_grpo") -> list[dict]:
    """The metrics of a recipe's two steps."""
    env = e2e.recipe_environment(out, method)
    bash("cpu/data.sh", **env)
    bash(script, *settings, "data.val_max_samples=8", **env)
    (file,) = out.glob("metrics-*.jsonl")
    records = e2e.training_steps(file)
    assert e2e.saved_step(out) == 2 and [record["data"]["training/global_step"] for record in records] == [1, 2]
    return records


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "method"),
    [*((script, "cw_grpo") for script in MEGATRON), ("run_qwen2_5_math_7b_fsdp.sh", "clip_cov")],
)
def test_the_other_recipes_train_on_a_cpu(script, method, tmp_path):
    run = tmp_path / "checkpoints"
    records = recipe(script, run, method=method)
    for record in records:
        assert record["data"]["actor/grad_norm"] > 0
        assert abs(record["data"]["actor/ppo_kl"]) < 1e-2  # the policy is the one that computed old_log_probs
    if method == "cw_grpo":
        e2e.assert_logged(records)
        e2e.assert_right(run)


@pytest.mark.slow
def test_after_kill_9_the_quickstart_resumes_with_the_legacy_trainer(tmp_path):
    run, command = tmp_path / "killed", ("trainer.use_v1=False", "trainer.save_freq=1")
    process = e2e.quickstart(run, *command, STEPS="5")
    wait_until(lambda: e2e.saved_step(run / "checkpoints") >= 2, run / "stdout", process)
    workers = [p for p in e2e.trainer_processes(run) if "WorkerDict" in " ".join(p.cmdline())]
    assert workers
    for worker in workers:
        worker.send_signal(signal.SIGKILL)
    assert process.wait() != 0
    assert not e2e.trainer_processes(run), "processes of the killed run are left"
    saved = e2e.saved_step(run / "checkpoints")
    records = e2e.finish(run, e2e.quickstart(run, *command, STEPS="5"))
    assert [record["step"] for record in records] == list(range(saved + 1, 6))
    e2e.assert_right(run)
    e2e.assert_logged(records)


@pytest.mark.slow
def test_the_loss_in_an_asynchronous_trainer(tmp_path):
    run = tmp_path / "a name with = in it"
    loss, mode = "actor_rollout_ref.actor.policy_loss.loss_mode=cw_grpo", "trainer.v1.trainer_mode=colocate_async"
    e2e.assert_logged(
        e2e.finish(run, e2e.quickstart(run, loss, mode, METHOD="grpo", STEPS="2", size=())), "actor/cw_grpo/"
    )
    assert {batch["estimator"].split(".")[-1].lower() for batch in e2e.batches(run)} == {"grpo"}
    assert [len(batch["uids"]) for batch in e2e.batches(run)] == [128, 128]

    # Validation after training, and what the quickstart says in the end.
    answers = [json.loads(line) for line in (run / "validation" / "2.jsonl").read_text().splitlines()]
    (shown,) = re.findall(r"^validation: right answers .* ([\d.]+) \(step 2\)$", (run / "stdout").read_text(), re.M)
    assert float(shown) == pytest.approx(sum(answer["acc"] for answer in answers) / len(answers), abs=6e-4)


FULLY_ASYNC = (
    "async_training.trigger_parameter_sync_step=1", "data.train_batch_size=0", "data.gen_batch_size=1",
    "rollout.n=4", "rollout.total_rollout_steps=16",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "settings"),
    [("one_step_off_policy.main_ppo", ()), ("fully_async_policy.fully_async_main", FULLY_ASYNC)],
)
def test_an_asynchronous_program_trains_on_the_weights(tmp_path, program, settings):
    """In a Ray of its own, with a rollout server beside the trainer."""
    run = tmp_path / "run"
    environment = e2e.recipe_environment(run)
    bash("cpu/data.sh", **environment)
    bash("../tests/tools/async_program.sh", f"verl.experimental.{program}", *settings, **environment)
    e2e.assert_right(run)
    assert [len(batch["uids"]) for batch in e2e.batches(run)] == [32, 32]
    checkpoint = run / "checkpoints" / "global_step_2"
    assert checkpoint.is_dir() and json.loads((run / "checkpoints" / "cw_grpo.json").read_text())
    logged = [json.loads(line)["data"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert sum("cw_grpo/sigma" in data for data in logged) >= 1


@pytest.mark.slow
def test_ray_workers_are_asked(monkeypatch):
    wait_for_ray = functools.partial(python, ROOT / "examples" / "launcher" / "wait_for_ray.py")
    config = OmegaConf.create({"trainer": {"use_v1": False}})
    assert list(workers.check_ray_workers(config)) == []  # without a cluster, this process answers
    with e2e.cluster("--num-cpus=1", VERL_USE_EXTERNAL_PLUGINS="none") as (address, folder):
        monkeypatch.setenv("RAY_ADDRESS", address)
        monkeypatch.setenv("RAY_TMPDIR", folder)
        (finding,) = workers.check_ray_workers(config)
        waited = [wait_for_ray(address, "1", "60"), wait_for_ray(address, "2", "1")]
    assert "a Ray worker on" in finding.what and "restart a running cluster" in finding.fix
    assert [result.returncode for result in waited] == [0, 1] and "1 of 2 nodes" in waited[1].stderr
    assert "0 of 1 nodes" in wait_for_ray("127.0.0.1:9", "1", "1").stderr


@pytest.mark.slow
def test_the_study_trains_two_at_a_time_and_gathers_what_has_finished(tmp_path):
    """Two runs, each with a Ray of its own, one of them with a variant of the ablation."""
    code = "import study; study.run([study.Job('main', f'cw_grpo{of}', '1e-5', 1, 2) for of in ('', '_shuffled')])"
    folder = ROOT / "examples" / "study"
    env = e2e.environment(tmp_path, PYTHONPATH=str(folder), WORK=str(tmp_path), VERL_USE_EXTERNAL_MODULES="")
    subprocess.run([sys.executable, folder / "task.py", "problems", tmp_path / "data"], check=True)
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, env=env, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    metrics = pq.read_table(tmp_path / "results" / "metrics.parquet").to_pylist()
    runs = {method: [row for row in metrics if row["method"] == method] for method in ("cw_grpo", "cw_grpo_shuffled")}
    for rows in runs.values():
        assert [row["step"] for row in rows] == [0, 1, 2]
        assert all(0.38 < row["accuracy"] < 0.56 for row in rows if row["accuracy"] is not None)  # 0.47, 512 answers
        assert all(row["rollout_difference"] < 1e-3 for row in rows[1:])  # vLLM has its own trainer's weights
        assert rows[0]["accuracy"] is not None and rows[2]["accuracy"] is not None
    # Weights on the wrong tokens leave the covariance where it was.
    right, wrong = (sum(abs(row["covariance_after"]) for row in rows[1:]) for rows in runs.values())
    assert right < 0.5 * wrong
    covariance = pq.read_table(tmp_path / "results" / "covariance.parquet").to_pylist()
    assert {row["method"] for row in covariance} == set(runs)
    subprocess.run(command, env=env, check=True)  # in which there is nothing to do


@pytest.mark.slow
@pytest.mark.parametrize("trainer", ["trainer.use_v1=True", "trainer.use_v1=False"])
def test_a_weighting_gets_the_entropies_that_verl_logs(tmp_path, trainer):
    """Of both trainers, from the forward pass of their own."""
    weights = "+algorithm.cw_grpo.weights=own_weightings:entropies"
    loss = "actor_rollout_ref.actor.loss_agg_mode=token-mean"
    records = recipe(e2e.IN_EVERY_RUN, tmp_path, trainer, weights, loss)
    for record in records:
        mean, entropy = (record["data"][name] for name in ("cw_grpo/weight_mean", "actor/entropy"))
        assert mean == pytest.approx(entropy, rel=1e-4) and mean > 0
