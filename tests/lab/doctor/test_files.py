"""The doctor's checks of data: each fault is planted, and seen."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from doctor_runs import COLUMNS, QUESTION, REWARD, changed, good, write_rows
from omegaconf import DictConfig

from cw_plugin.lab.compose import compose
from cw_plugin.lab.doctor import files
from cw_plugin.lab.doctor.ground_truths import check_ground_truths


@pytest.fixture(scope="module")
def composed(tmp_path_factory) -> DictConfig:
    return compose(good(tmp_path_factory.mktemp("doctor")))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "cannot be read (Parquet file size is 0 bytes)"),
        ({"names": ["data_source", "question", "reward_model"]}, "lacks the column(s) prompt; it has data_source"),
        ({"prompt": "What is 2+2?"}, "holds string, not lists of messages"),
        (
            {"prompt": [{"from": "human", "value": "What is 2+2?"}]},
            "row 0 has a message with the keys from, value; verl",
        ),
        ({"prompt": [{"speaker": "user", "content": "2+2?"}]}, "a message with the keys speaker, content; verl"),
        (pa.table([["my/data"], [QUESTION], ["4"]], names=COLUMNS), "column reward_model of {file} holds string"),
        (["4", None, "", " \n"], "3 row(s) cannot be graded, first [1, 2, 3]: The ground truth is empty (None)"),
        ([["4"], ["5"]], "2 row(s) cannot be graded, first [0, 1]: The ground truth is a list, ['4']"),
        ([1.5, float("nan"), 2.0], "1 row(s) cannot be graded, first [1]: The ground truth is nan"),
        (["4", "x^{", "5", "x^{"], "first [1, 3]: The ground truth 'x^{' cannot be read by math-verify"),
    ],
)
def test_a_file_that_cannot_be_used(composed, tmp_path, content, said):
    file = tmp_path / "train.parquet"
    if isinstance(content, bytes):
        file.write_bytes(content)
    elif isinstance(content, pa.Table):
        pq.write_table(content, file)
    else:
        write_rows(file, **(content if isinstance(content, dict) else {"ground_truths": content}))
    config = changed(composed, f"data.train_files=[{file}]", "data.train_batch_size=1")
    (finding,) = [*files.check_files(config), *check_ground_truths(config)]
    assert finding.fatal and str(file) in finding.what and said.replace("{file}", str(file)) in finding.what
    if isinstance(content, list):
        # The reward of somebody else may grade them; and what is only unreadable may be in a benchmark.
        assert list(check_ground_truths(changed(config, f"{REWARD}.path=my.py"))) == []
        (finding,) = check_ground_truths(changed(composed, f"data.val_files={file}"))
        assert finding.fatal is ("math-verify" not in said)
    if "lacks" in said:
        assert list(files.check_files(changed(config, "data.prompt_key=question", f"data.val_files={file}"))) == []


ROW = {"data_source": "my/data", "prompt": QUESTION, "reward_model": {"ground_truth": "4"}}


@pytest.mark.parametrize(
    ("name", "rows", "said"),
    [
        ("five.jsonl", [ROW] * 5, "has 5 row(s), fewer than data.train_batch_size=8: verl trains no step"),
        ("text.jsonl", [ROW | {"extra_info": '{"index": 0}'}] * 8, "extra_info of {file} holds string, and verl reads"),
        ("list.jsonl", [ROW | {"reward_model": {"ground_truth": ["4"]}}] * 8, "The ground truth is a list, ['4']"),
        ("rows.csv", [ROW] * 8, "{file} is no file that verl reads (.parquet, .json, .jsonl)"),
        ("folder.jsonl/0.jsonl", [ROW] * 8, "{folder} is no file that verl reads"),
        ("broken.jsonl", ["{"] * 8, "cannot be read (Expecting"),
    ],
)
def test_rows_that_verl_cannot_train_on(composed, tmp_path, name, rows, said):
    file = tmp_path / name
    file.parent.mkdir(exist_ok=True)
    file.write_text("".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows))
    given = file.parent if name.startswith("folder") else file
    config = changed(composed, f"data.train_files={given}")
    (finding,) = [*files.check_files(config), *check_ground_truths(config)]
    assert finding.fatal and said.format(file=file, folder=given) in finding.what
    of_user = changed(config, "data.custom_cls.path=my.py", f"{REWARD}.path=my.py")  # which may read anything
    assert [*files.check_files(of_user), *check_ground_truths(of_user)] == []


def test_train_files_that_verl_cannot_join(composed, tmp_path):
    names = [tmp_path / name for name in ("numbers.jsonl", "texts.jsonl", "none.json")]
    for file, index in zip(names, (1, "1", None), strict=True):  # the last is one list
        rows = [ROW | {"extra_info": {"index": index}}] * 8
        lines = "".join(f"{json.dumps(row)}\n" for row in rows)
        file.write_text(json.dumps(rows) if file.suffix == ".json" else lines)
    (finding,) = files.check_files(changed(composed, f"data.train_files=[{names[0]},{names[1]}]"))
    assert finding.fatal and "cannot join these files: The features can't be aligned" in finding.what
    assert "key index" in finding.what
    for fine in (f"[{names[0]},{names[2]}]", f"[{names[0]},hdfs://host/a.parquet]"):
        assert list(files.check_files(changed(composed, f"data.train_files={fine}"))) == []


def test_rows_that_a_reward_model_alone_scores_need_no_ground_truth(composed, tmp_path):
    pq.write_table(pa.table([["my/data"], [QUESTION]], names=COLUMNS[:2]), file := tmp_path / "train.parquet")
    config = changed(composed, f"data.train_files={file}", "reward.reward_model.enable=True")
    assert "lacks the column(s) reward_model" in next(files.check_files(config)).what
    alone = changed(config, f"{REWARD}.path=null", "data.train_batch_size=1")
    assert list(files.check_files(alone)) == []
