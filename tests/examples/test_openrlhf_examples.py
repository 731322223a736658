"""examples/openrlhf and the reward file, without OpenRLHF."""

import pytest

pytest.importorskip("verl")

import os
import runpy
from collections import Counter

import pyarrow as pa
import pyarrow.parquet as pq
from interpreter import ROOT, bash

from cw_plugin.lab.errors import DataError
from cw_plugin.lab.rewards.openrlhf import openrlhf_reward, reward_func


def test_problems_are_drawn_at_random_without_long_prompts(tmp_path, monkeypatch, capsys):
    bash("cpu/data.sh")
    source = f"{os.environ['QUICKSTART_DATA']}/open_rs/train.parquet"
    table = pq.read_table(source)
    prompts = [row["prompt"] for row in table.to_pylist()]
    # A character is a token of the quickstart's model, or less.
    system, longest = prompts[0][0], {"role": "user", "content": "9" * 600}
    rows = [*table.slice(0, 10).to_pylist(), table.slice(0, 1).to_pylist()[0] | {"prompt": [system, longest]}]
    pq.write_table(pa.Table.from_pylist(rows, table.schema), tmp_path / "eleven.parquet")

    eleven, file = tmp_path / "eleven.parquet", tmp_path / "drawn.parquet"

    def start(seed: int) -> None:
        model = str(ROOT / "examples" / "cpu" / "model")
        options = ["--rows", "25", "--seed", str(seed), "--model", model, "--max-prompt", "400"]
        monkeypatch.setattr("sys.argv", ["draw.py", str(eleven), str(file), *options])
        runpy.run_path(str(ROOT / "examples" / "openrlhf" / "draw.py"), run_name="__main__")

    def draw(seed: int) -> list[str]:
        file.unlink(missing_ok=True)
        start(seed)
        assert "25 problems, drawn among 10 of 11" in capsys.readouterr().out
        drawn = pq.read_table(file)
        assert drawn.schema.equals(table.schema)
        return [row["prompt"][-1]["content"] for row in drawn.to_pylist()]

    first = draw(42)
    assert sorted(Counter(first).values()) == [2] * 5 + [3] * 5 and "9" * 600 not in first
    assert len(set(first[:10])) == 10 and first[:10] != [prompt[-1]["content"] for prompt in prompts[:10]]
    assert draw(42) == first != draw(43)

    before = file.read_bytes()  # a run that goes on keeps its problems, and others are not trained on in silence
    start(43)
    pq.write_table(pa.Table.from_pylist(rows[1:], table.schema), eleven)
    for seed, changed in ((43, "source"), (42, "seed, source")):
        with pytest.raises(SystemExit):
            start(seed)
        assert f"drawn with another {changed};" in capsys.readouterr().err
    assert file.read_bytes() == before


@pytest.mark.parametrize(
    ("label", "opened", "answer", "reward"),
    [
        ("3", "<think>\n", "so\n</think>\n\\boxed{3}<|im_end|>", (2.0, 1.0)),
        ({"style": "rule", "ground_truth": "3"}, "", "<think>so</think> \\boxed{3}<｜end▁of▁sentence｜>", (2.0, 1.0)),  # noqa: RUF001
        ("3", "<think>\n", "<think>so</think> \\boxed{3}", (1.0, 1.0)),  # the prompt has opened the section
        ("4", "", "<think>so</think> \\boxed{3}", (1.0, 0.0)),
    ],
)
def test_the_reward_file_grades_the_response_alone(label, opened, answer, reward):
    prompt = f"<|im_start|>user\n\\boxed{{5}}?<|im_end|>\n<|im_start|>assistant\n{opened}"
    found = reward_func([prompt + answer], [prompt], [label])
    assert (found["rewards"], found["scores"]) == reward
    assert found["extra_logs"] == {"acc": reward[1], "format": reward[0] - reward[1]}


@pytest.mark.parametrize(
    ("prompt", "decoded"),
    [
        # Llama 2, Mistral
        ("<s>[INST] Is 1+1 = 2?  \\boxed{5}? [/INST]", "<s> [INST] Is 1+1 = 2?  \\boxed{5}? [/INST]"),
        ("R is 5 \u2126.\n<think>\n", "R is 5 \u03a9.\n<think>\n"),  # Qwen: the sign for ohm is an omega in NFC
        ("The cafe\u0301?\n<think>\n", "The caf\u00e9?\n<think>\n"),
    ],
)
def test_a_prompt_is_found_where_the_tokenizer_has_changed_it(prompt, decoded):
    opening = "" if prompt.endswith("<think>\n") else "<think>"
    found = reward_func([f"{decoded}{opening}so\n</think>\n\\boxed{{3}}"], [prompt], ["3"])
    assert found["extra_logs"] == {"acc": 1.0, "format": 1.0}


def test_options_are_passed_on_and_the_end_token_is_no_part_of_the_answer():
    graded = openrlhf_reward(extraction="evaluation", format_weight=0)
    assert graded(["1+2? 3<|im_end|>"], ["1+2? "], ["3"])["rewards"] == 1.0
    assert reward_func(["1+2? 3<|im_end|>"], ["1+2? "], ["3"])["rewards"] == 0.0  # in training, only LaTeX counts
    assert openrlhf_reward(opens_think=True)(["1+2? so</think> \\boxed{3}"], ["1+2? "], ["3"])["rewards"] == 2.0
    with pytest.raises(DataError, match="max_len"):
        reward_func(["2+1? 3"], ["1+2? "], ["3"])
