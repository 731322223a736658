"""One training run, as every host has it: what it keeps of the host's advantages, and the method of its checkpoints."""

import itertools
import json
import logging
import re
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from random_batches import random_batch
from reference import reference_advantages

from cw_plugin.batch import Batch, group_numbers, joined, of_responses
from cw_plugin.errors import HostError, OptionsError
from cw_plugin.options import Options
from cw_plugin.run import Run
from cw_plugin.sharded import ShardedRun


def batch(seed: int = 0) -> Batch:
    log_probs, advantages, mask, group = random_batch(seed)
    return Batch(log_probs, advantages, mask, group, rewards=advantages, read_sequences=None, tokenizer=None)


def begun(folder: Path, has_checkpoint: bool = False, resumed_from: Path | None = None, **options: Any) -> Run:
    run = Run(Options(**options), folder / "records")
    run.begin(folder, has_checkpoint, resumed_from)
    return run


@pytest.mark.parametrize("scope", ["group", "batch"])
def test_advantages_and_metrics_are_those_of_the_method(tmp_path, scope, caplog):
    caplog.set_level(logging.INFO)
    given = batch()
    reweighted = begun(tmp_path, scope=scope).reweight(given, 1)
    uids = given.group if scope == "group" else [0] * len(given.group)
    expected, groups = reference_advantages(given.log_probs, given.advantages, given.response_mask, uids)
    torch.testing.assert_close(
        reweighted.advantages.double(), torch.tensor(expected, dtype=torch.float64), rtol=1e-5, atol=1e-5
    )
    sigmas = [group["sigma"] for group in groups.values()]
    assert reweighted.metrics["cw_grpo/sigma"] == pytest.approx(sum(sigmas) / len(sigmas))
    assert "this run trains on reweighted advantages" in caplog.text
    assert begun(tmp_path, weights="none").reweight(given, 1).advantages is None
    assert "this run trains on the host's own advantages" in caplog.text


@pytest.mark.parametrize("kind", ["whole", "sharded"])
def test_seconds_are_those_of_the_weights(tmp_path, monkeypatch, kind):
    """On a GPU, the first copy waits for the forward pass that is still queued. Here, only that wait takes time."""
    clock = itertools.count()
    waited, now = Batch.on_cpu, [0]

    def wait(given):
        now[0] = next(clock) + 1
        return waited(given)

    monkeypatch.setattr(Batch, "on_cpu", wait)
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    run = Run(Options(), tmp_path)
    if kind == "sharded":
        never_called = {"gather": len, "pad_across_processes": len}
        alone = SimpleNamespace(num_processes=1, process_index=0, is_main_process=True, **never_called)
        run = ShardedRun(alone, len(batch().group), Options(), tmp_path)
    assert run.reweight(batch(), 1).metrics["cw_grpo/seconds"] == 0


@pytest.mark.parametrize(
    ("options", "name", "before", "now"),
    [
        ({}, "weights", "gaussian", "none"),
        ({}, "scope", "group", "batch"),
        ({"weights": "ar"}, "settings", {"alpha": 0.2}, {"alpha": 0.3}),
    ],
)
def test_a_run_does_not_begin_among_another_methods_checkpoints(tmp_path, options, name, before, now):
    """Whether or not it resumes them: a run that was killed before its first checkpoint must not rename them."""
    other = options | {name: now}
    begun(tmp_path, **options).reweight(batch(), 1)
    written = (tmp_path / "cw_grpo.json").read_text()
    trained = f"{tmp_path} has checkpoints that were trained with {name}={before!r}, and this run has {name}={now!r}"
    refusal = re.escape(f"{trained}; use {name}={before!r}, train in another folder")
    with pytest.raises(OptionsError, match=refusal):
        begun(tmp_path, has_checkpoint=True, **other)
    with pytest.raises(OptionsError, match=refusal):
        begun(tmp_path / "elsewhere", resumed_from=tmp_path, **other)
    own_checkpoints = tmp_path / "own"
    begun(own_checkpoints, **other).reweight(batch(), 1)
    with pytest.raises(OptionsError, match=refusal):
        begun(own_checkpoints, has_checkpoint=True, resumed_from=tmp_path, **other)
    with pytest.raises(OptionsError, match=f"{own_checkpoints} has checkpoints"):
        begun(own_checkpoints, has_checkpoint=True, resumed_from=tmp_path, **options)
    assert (tmp_path / "cw_grpo.json").read_text() == written
    begun(tmp_path, has_checkpoint=True, resumed_from=tmp_path, **{name: before} | options)


def test_without_a_checkpoint_another_method_may_begin(tmp_path):
    begun(tmp_path).reweight(batch(), 1)
    run = begun(tmp_path, weights="none")
    assert json.loads((tmp_path / "cw_grpo.json").read_text())["weights"] == "gaussian"  # until it has a batch
    run.reweight(batch(), 1)
    assert json.loads((tmp_path / "cw_grpo.json").read_text()) == {"scope": "group", "weights": "none", "settings": {}}


@pytest.mark.parametrize("content", [b"{", b"[]", b"\xff", b'{"scope": "group"}', b'{"weights": "none"}'])
def test_a_damaged_method_file_is_refused(tmp_path, content):
    (tmp_path / "cw_grpo.json").write_bytes(content)
    with pytest.raises(OptionsError, match=f"{tmp_path}/cw_grpo.json does not say which method .*restore or remove"):
        begun(tmp_path, has_checkpoint=True)


def test_checkpoints_without_a_method_file_are_accepted_and_without_settings_if_their_weighting_has_none(tmp_path):
    begun(tmp_path, has_checkpoint=True, weights="none")
    (tmp_path / "cw_grpo.json").write_text('{"scope": "group", "weights": "none"}')
    begun(tmp_path, has_checkpoint=True, weights="none")
    (tmp_path / "cw_grpo.json").write_text('{"scope": "group", "weights": "ar"}')  # which has some
    with pytest.raises(OptionsError, match=r"trained with settings={}, and this run has settings={'alpha': 0\.2}"):
        begun(tmp_path, has_checkpoint=True, weights="ar")


def test_a_folder_that_cannot_be_written_is_said_once_in_the_hosts_log_and_training_goes_on(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    run = Run(Options(), tmp_path / "file", logging.getLogger("host"))
    run.begin(tmp_path / "file", has_checkpoint=False)
    given = replace(batch(), read_sequences=list)  # without a tokenizer: its record fails, too
    assert all(run.reweight(given, step).advantages is not None for step in (1, 2))
    assert caplog.text.count("cw_grpo.json cannot be written") == 1
    assert "step_000001.parquet cannot be written" in caplog.text
    assert {record.name for record in caplog.records} == {"host"}


def test_settings_of_the_host_and_ours_are_written_for_the_reports(tmp_path):
    Run(Options("batch", "ar"), tmp_path).write_settings({"output_dir": tmp_path, "cw_scope": "group"})
    ours = {"cw_scope": "batch", "cw_weights": "ar", "cw_settings": {"alpha": 0.2}, "cw_record_every": 50}
    assert json.loads((tmp_path / "training_args.json").read_text()) == {"output_dir": str(tmp_path), **ours}


def test_a_step_in_which_every_weight_is_1_is_told_once(tmp_path, caplog):
    """With the weights none, 1 is meant. AR's are less without a signal, too; the smallest of STARE is 1 with one."""
    alike = replace(batch(), advantages=torch.zeros(len(batch().advantages)))
    once = ["cw_grpo: every weight was 1 in step 2"]
    for weights, told in {"none": [], "gaussian": once, "ar": [], "stare": once}.items():
        caplog.clear()
        run = begun(tmp_path / weights, weights=weights)
        for step, given in enumerate((batch(), alike, alike), start=1):
            run.reweight(given, step, 2)
        warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
        assert [record.getMessage().split(",")[0] for record in warnings] == told
    begun(tmp_path / "outside of training").reweight(alike, 0)
    assert "cw_grpo: every weight was 1 in step 0" in caplog.text


def test_advantages_that_differ_within_a_response_are_refused():
    mask = torch.tensor([[0, 1, 1, 0], [1, 1, 1, 1]])
    advantages = torch.tensor([[9.0, 2.0, 2.0, 9.0], [3.0, 3.0, 3.0, 3.0]])
    assert torch.equal(of_responses(advantages, mask), torch.tensor([2.0, 3.0]))
    for other in (1.5, 2.5):
        with pytest.raises(HostError, match="differs within a response"):
            of_responses(advantages.index_fill(1, torch.tensor([2]), other), mask)


def test_groups_are_numbered_as_their_prompts_occur():
    assert group_numbers(["b", "a", "b", 7, "7"]).tolist() == [0, 1, 0, 2, 3]


def test_micro_batches_of_several_widths_are_joined():
    parts = [torch.ones(3, 1), 2 * torch.ones(1, 2)]
    assert joined(parts).tolist() == [[1, 0], [1, 0], [1, 0], [2, 2]]
