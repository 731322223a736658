"""The doctor's check of data: each fault is planted, and seen."""

import pytest

pytest.importorskip("verl")

import json

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
from doctor_runs import COLUMNS, QUESTION, REWARD, ROW, changed, write_rows
from interpreter import ROOT
from omegaconf import DictConfig

from cw_plugin.lab.data import CHECKED_BY
from cw_plugin.lab.doctor.finding import Finding
from cw_plugin.lab.doctor.rows import check_rows


def found(config: DictConfig, *overrides: str) -> list[Finding]:
    return list(check_rows(changed(config, *overrides)))


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"names": ["data_source", "question", "reward_model"]}, "row 0 has no prompt"),
        ({"prompt": []}, "row 0 has a prompt that is no list of messages: []"),
        ({"prompt": "What is 2+2?"}, "row 0 has a prompt that is no list of messages: 'What is 2+2?'"),
        ({"prompt": ["What is 2+2?"]}, "row 0 has a message without role and content: 'What is 2+2?'"),
        ({"prompt": [{"role": "user", "value": "2+2?"}]}, "row 0 has a message without role and content: {'role'"),
        ({"prompt": [*QUESTION, {"speaker": "user", "content": "?"}]}, "a message without role and content: {'role'"),
        ({"ground_truths": ["4", None, "", " \n"]}, "3 row(s) cannot be graded, first [1, 2, 3]: The ground truth is"),
        ({"ground_truths": [["4"], ["5"]]}, "2 row(s) cannot be graded, first [0, 1]: The ground truth is a list"),
        ({"ground_truths": [1.5, float("nan"), 2.0]}, "first [1]: The ground truth is nan"),
        ({"ground_truths": ["4", "x^{", "5", "x^{"]}, "[1, 3]: The ground truth 'x^{' cannot be read by math-ver"),
    ],
)
def test_a_file_that_cannot_be_used(composed, tmp_path, columns, said):
    file, children = write_rows(tmp_path / "train.parquet", **columns), psutil.Process().children()
    composed = changed(composed, "data.train_batch_size=1")
    (finding,) = found(composed, f"data.train_files=[{file}]")
    assert finding.fatal and finding.what.startswith(f"data.train_files: {file}: ") and said in finding.what
    assert found(composed, f"data.train_files={file}", "data.custom_cls.path=my.py") == []  # which may read anything
    if "ground_truths" in columns:
        # The reward of somebody else may grade them; and what is only unreadable may be in a benchmark.
        assert found(composed, f"data.train_files={file}", f"{REWARD}.path=my.py") == []
        by_path = f"{REWARD}.path={ROOT}/cw_plugin/lab/rewards/__init__.py"
        (finding,) = found(composed, f"data.val_files={file}", by_path)
        assert finding.fatal is ("math-ver" not in said)
        assert set(psutil.Process().children()) <= set(children)  # what grades has ended
    if "math-ver" in said:  # what `cw-grpo prepare` wrote is not graded again, which takes time
        pq.write_table(pq.read_table(file).replace_schema_metadata({CHECKED_BY: ""}), file)
        assert found(composed, f"data.train_files={file}") == []
    if "has no" in said:
        assert found(composed, "data.prompt_key=question", f"data.train_files={file}", f"data.val_files={file}") == []


@pytest.mark.parametrize(
    ("name", "row", "said"),
    [
        ("text.parquet", ROW | {"extra_info": '{"index": 0}'}, "row 0 has text in extra_info, of which verl reads"),
        ("text.jsonl", ROW | {"reward_model": "4"}, "row 0 has text in reward_model, of which verl reads fields: '4'"),
        (
            "none.jsonl",
            ROW | {"reward_model": {"style": "rule"}},
            "row 0 has no ground_truth in reward_model",
        ),
        ("few.jsonl", ROW, "data.train_files has 8 row(s) for the run, fewer than a batch of 9: verl trains no step"),
        ("list.jsonl", ROW | {"reward_model": {"ground_truth": ["4"]}}, "The ground truth is a list, ['4']"),
        ("rows.csv", ROW, "rows.csv is no file that verl reads (.parquet, .json, .jsonl)"),
        ("folder.jsonl/0.jsonl", ROW, "folder.jsonl is no file that verl reads"),
        ("broken.jsonl", "{", "cannot be read (Expecting"),
        ("none.parquet", ROW, "none.parquet has no row"),
        ("empty.parquet", "", "cannot be read (Parquet magic bytes not found"),
    ],
)
def test_a_file_of_another_form(composed, tmp_path, name, row, said):
    file = tmp_path / name
    file.parent.mkdir(exist_ok=True)
    file.write_text(f"{row if isinstance(row, str) else json.dumps(row)}\n" * 8)
    if name in ("text.parquet", "none.parquet"):
        pq.write_table(pa.Table.from_pylist([row] * 8)[: 8 if name == "text.parquet" else 0], file)
    given = file.parent if name.startswith("folder") else file
    (finding,) = found(composed, f"data.train_files={given}", "data.train_batch_size=9")
    assert finding.fatal and said in finding.what


def test_what_verl_reads(composed, tmp_path):
    """A list in JSON, a line separator in a text, a message that only calls tools, and what is elsewhere."""
    call = {"role": "assistant", "content": None, "tool_calls": []}
    row = ROW | {"prompt": [{"role": "user", "content": "2+2\u2028"}, call]}
    files = [tmp_path / "list.json", tmp_path / "lines.json"]
    files[0].write_text(json.dumps([row]))
    files[1].write_text(json.dumps(row, ensure_ascii=False) + "\n")
    assert found(composed, f"data.train_files=[{files[0]},{files[1]},hdfs://host/a.parquet]") == []
    assert found(composed, f"data.train_files={tmp_path}/li*.json", "data.train_batch_size=2") == []


def test_rows_that_a_reward_model_scores_need_no_ground_truth(composed, tmp_path):
    pq.write_table(pa.table([["my/data"], [QUESTION]], names=COLUMNS[:2]), file := tmp_path / "train.parquet")
    settings = [f"data.train_files={file}", f"{REWARD}.path=null", "data.train_batch_size=1"]
    scored, ours = "reward.reward_model.enable=True", f"{REWARD}.path=pkg://cw_plugin.lab.rewards"
    assert found(composed, *settings, scored) == found(composed, scored, ours) == []
    for needs_it in ([], [scored, ours]):
        (finding,) = found(composed, *settings, *needs_it)
        assert "row 0 has no reward_model" in finding.what
