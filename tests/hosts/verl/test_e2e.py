"""One run of main_ppo through a recipe with everything: what it trains on, records and resumes, and its evaluation."""

import pytest

pytest.importorskip("verl")

import json
import os
import signal
import subprocess
from pathlib import Path

import e2e
import pyarrow.parquet as pq
from interpreter import ROOT, bash, wait_until

from cw_plugin.lab.evaluation.graded_answers import read_answers
from cw_plugin.lab.reports.read_records import read_tokens
from cw_plugin.lab.rewards import compute_score

pytestmark = pytest.mark.e2e


def start_paper_run(run: Path, **more: str) -> subprocess.Popen:
    """A recipe on two ranks with KL, rollout correction, mini-batches, epochs, dynamic sampling and token records."""
    everything = f"""
algorithm.use_kl_in_reward=True algorithm.rollout_correction.rollout_is=token
algorithm.rollout_correction.rollout_rs=token_k1 algorithm.rollout_correction.rollout_rs_threshold='0.5_2.0'
actor_rollout_ref.rollout.calculate_log_probs=True
algorithm.filter_groups.enable=True algorithm.filter_groups.metric=score
actor_rollout_ref.actor.ppo_epochs=2 actor_rollout_ref.actor.ppo_mini_batch_size=4
+algorithm.cw_grpo.record_every=2
trainer.rollout_data_dir={run / "rollouts"}
data.val_max_samples=8
"""
    env = {"NGPUS": "2", "SAVE_FREQ": "1"} | more
    return e2e.start(e2e.IN_EVERY_RUN, run.parent / "stdout", *everything.split(), **e2e.recipe_environment(run, **env))


@pytest.fixture(scope="module")
def paper_run(tmp_path_factory):
    run = tmp_path_factory.mktemp("e2e") / "everything"
    bash("cpu/data.sh", **e2e.recipe_environment(run))
    e2e.assert_succeeds(start_paper_run(run), run.parent / "stdout")
    return run


def assert_finished(run: Path, steps: list[int]) -> None:
    """Its last start trained these steps, and both steps have a record of their tokens."""
    records = e2e.training_steps(max(run.glob("metrics-*.jsonl")))
    assert [record["step"] for record in records] == steps
    e2e.assert_logged(records)
    assert [record.step for record in read_tokens(run)] == [1, 2]


@pytest.mark.slow
def test_a_recipe_that_was_ended_by_ctrl_c_goes_on(tmp_path):
    """After its first step. The same command, on a Ray that was there, does not train that step again."""
    run = tmp_path / "ended"
    stdout, dumped = run.parent / "stdout", run / "rollouts" / "1.jsonl"  # the latter after the step's checkpoint
    bash("cpu/data.sh", **e2e.recipe_environment(run))
    first = start_paper_run(run)
    try:
        wait_until(lambda: dumped.exists() and dumped.read_text().count("\n") == 32, stdout, first)
        assert len(e2e.trainer_processes(run)) > 5
    finally:
        os.killpg(first.pid, signal.SIGINT)  # as a terminal does
    assert first.wait() == -signal.SIGINT
    assert not e2e.trainer_processes(run) and e2e.saved_step(run) == 1
    env = e2e.recipe_environment(run)
    of_ray = {name: env[name] for name in ("E2E_PROBE_DIR", "PYTHONPATH", "VERL_USE_EXTERNAL_MODULES")}
    with e2e.cluster("--num-gpus=2", "--num-cpus=16", TORCHDYNAMO_DISABLE="1", **of_ray) as (address, folder):
        e2e.assert_succeeds(start_paper_run(run, RAY_ADDRESS=address, RAY_TMPDIR=folder), stdout)
    assert_finished(run, [2])
    e2e.assert_right(run)


def test_a_recipe_with_everything_trains_on_the_papers_weights(paper_run):
    assert_finished(paper_run, [1, 2])
    e2e.assert_right(paper_run)
    for batch in e2e.batches(paper_run):  # the responses to some prompts lie on both ranks
        half = len(batch["uids"]) // 2
        assert set(batch["uids"][:half]) & set(batch["uids"][half:])
    for step in (1, 2):  # groups whose scores are all alike were replaced
        scores: dict[str, set[float]] = {}
        for line in (paper_run / "rollouts" / f"{step}.jsonl").read_text().splitlines():
            scores.setdefault(json.loads(line)["input"], set()).add(json.loads(line)["score"])
        assert len(scores) == 8 and all(len(of_prompt) > 1 for of_prompt in scores.values())


def test_a_record_has_the_texts_of_the_batch(paper_run):
    record = read_tokens(paper_run)[-1]
    answers = [json.loads(line) for line in (paper_run / "rollouts" / "2.jsonl").read_text().splitlines()]
    assert record.step == 2 and set(record.prompts.values()) == {answer["input"] for answer in answers}
    said: dict[int, str] = {}
    for token in record.table.to_pylist():
        said[token["row"]] = said.get(token["row"], "") + token["text"]
    texts = sorted(text.replace("<|im_end|>", "") for text in said.values())
    assert texts == sorted(answer["output"] for answer in answers)
    assert len(record.table) == e2e.batches(paper_run)[-1]["response_mask"].sum()


@pytest.mark.parametrize("killed", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_an_evaluation_has_every_answer_and_asks_nothing_twice(killed, paper_run, tmp_path):
    """A checkpoint is merged and asked two benchmarks in one start. In the slow one a Hugging Face model, too, and a
    kill while it is asked."""
    out, half, few = tmp_path / "answers", tmp_path / "half.parquet", tmp_path / "few.parquet"
    pq.write_table(pq.read_table(e2e.problems() / "test.parquet").slice(0, 48), half)
    pq.write_table(pq.read_table(e2e.problems() / "test.parquet").slice(48, 4), few)
    env = e2e.environment(out)
    settings = ("data.max_prompt_length=192", "data.max_response_length=64")
    settings += tuple(f"actor_rollout_ref.rollout.val_kwargs.{part}" for part in ("n=2", "temperature=1.0"))
    command = ["bash", "-c", 'source examples/cpu/overlay.sh; exec cw-grpo evaluate "$@" "${EXTRA[@]}"', "evaluate"]
    command += [*[str(e2e.MODEL)] * killed, str(paper_run / "global_step_2")]
    command += ["--benchmarks", f"half={half} few={few}", "--out", str(out), "--", *settings]
    models = [*["model"] * killed, f"{paper_run.name}-global_step_2"]
    if killed:
        process = subprocess.Popen(command, cwd=ROOT, env=env)
        log = out / "model" / "verl.log"
        wait_until(lambda: log.exists() and "ready to fit" in log.read_text(errors="replace"), log, process)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        wait_until(lambda: not e2e.trainer_processes(out), "processes of the killed evaluation are left", pause=0.5)
        assert [note.split(":")[0] for note in read_answers(out)[1]] == [
            f"model is not finished on {name}" for name in ("few", "half")
        ]

    result = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    rows = {f"\n{row['prompt'][-1]['content']}\n": row for row in pq.read_table(half).to_pylist()}
    for model in models:
        graded = [json.loads(line) for line in (out / model / "half.jsonl").read_text().split("\n")[:-1]]
        answered = []
        for answer in graded:
            # The prompt ends with a line that is the question, and the line that opens the answer.
            (row,) = [row for question, row in rows.items() if question in answer["input"]]
            answered.append(row["extra_info"]["index"])
            again = compute_score(row["data_source"], answer["output"], row["reward_model"]["ground_truth"])
            assert again == {key: answer[key] for key in again}
        assert sorted(answered) == [index for index in range(48) for _ in range(2)]
        acc = [answer["acc"] for answer in graded]
        assert 0.2 < sum(acc) / len(acc) < 0.9
        assert f"{model}: half pass@1 {sum(acc) / len(acc):.2%} of 96 answers" in result.stdout
        asked = {json.loads(line)["input"] for line in (out / model / "few.jsonl").read_text().split("\n")[:-1]}
        others = [f"\n{row['prompt'][-1]['content']}\n" for row in pq.read_table(few).to_pylist()]
        assert sorted(sum(question in text for text in asked) for question in others) == [1] * len(asked) == [1] * 4
    assert result.stdout.count(": asking half, few; verl's output: ") == len(models)
    answers, notes = read_answers(out)
    assert notes == [] and [each.step for each in answers] == [2, 2, *[None, None] * killed]
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*.jsonl")}
    again = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    assert again.returncode == 0 and "asking" not in again.stdout
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*.jsonl")} == before
