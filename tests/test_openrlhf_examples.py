"""The reward file for OpenRLHF, without OpenRLHF."""

from __future__ import annotations

import pytest

from cw_plugin.errors import DataError
from cw_plugin.rewards.openrlhf import openrlhf_reward, reward_func


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


def test_the_end_token_is_no_part_of_the_answer():
    graded = openrlhf_reward(extraction="evaluation", format_weight=0)
    assert graded(["1+2? 3<|im_end|>"], ["1+2? "], ["3"])["rewards"] == 1.0


def test_a_query_without_its_prompt_is_refused():
    with pytest.raises(DataError, match="max_len"):
        reward_func(["2+1? 3"], ["1+2? "], ["3"])
