"""The paper's reward as TRL calls it, against compute_score."""

import pytest

pytest.importorskip("trl")

from cw_plugin.errors import OptionsError
from cw_plugin.lab.errors import DataError
from cw_plugin.lab.rewards import compute_score
from cw_plugin.lab.rewards.trl import trl_rewards

SECTION = "<think>3 + 4</think>"
RESPONSES = [SECTION + "\\boxed{7}", SECTION + "\\boxed{8}", "3 + 4</think>\\boxed{7}", "\\boxed{\\frac{14}{2}}", ""]
ANSWERS = ["7"] * len(RESPONSES)
SOURCES = ["knoveleng/open-rs", "knoveleng/open-rs", "math500", "aime24", "math500"]


def as_messages(texts):
    return [[{"role": "assistant", "content": text}] for text in texts]


@pytest.mark.parametrize("opens_think", [None, True, False])
@pytest.mark.parametrize(
    "answers",
    [
        {"ground_truth": ANSWERS, "solution": ["8"] * len(ANSWERS)},
        {"reward_model": [{"style": "rule", "ground_truth": answer} for answer in ANSWERS]},
        {"solution": ["We add: $3 + 4 = \\boxed{7}$."] * 3 + ["$7$", "7"]},
    ],
    ids=["ground_truth", "prepared", "solution"],
)
def test_the_two_rewards_add_up_to_compute_score(opens_think, answers):
    rows = zip(SOURCES, RESPONSES, ANSWERS, strict=True)
    scores = [compute_score(*row, opens_think=opens_think) for row in rows]
    for completions in (RESPONSES, as_messages(RESPONSES)):
        given = {"prompts": [""] * 5, "completions": completions, "completion_ids": [[]] * 5, "data_source": SOURCES}
        accuracy, formatted = (reward(**given, **answers) for reward in trl_rewards(opens_think=opens_think))
        assert accuracy == [score["acc"] for score in scores] == [1, 0, 1, 0 if opens_think else 1, 0]
        assert formatted == [score["format"] for score in scores]


def test_solutions_of_every_form():
    solutions = [7, 7.0, [7], ["7"], "<answer>7</answer>", r"<think>\boxed{8}</think> $\boxed{7}$"]
    accuracy, _ = trl_rewards()
    assert accuracy(completions=[r"\boxed{7}"] * 6, solution=solutions) == [1.0] * 6
    assert accuracy(completions=[r"\boxed{8}"] * 6, solution=solutions) == [0.0] * 6
    for wrong, why in [(None, "is empty"), ([7, 8], "is a list"), (True, "bool"), ("t(0,4]", "cannot be read")]:
        for column in ({"solution": ["7", wrong]}, {"ground_truth": ["7", wrong]}):
            with pytest.raises(DataError, match=f"row 1 of the batch: .*{why}"):
                accuracy(completions=[r"\boxed{7}"] * 2, **column)


def test_the_data_source_chooses_the_extraction():
    """Of Open-RS, only LaTeX counts."""
    given = {"completions": ["The final answer is 7."] * 2, "ground_truth": ["7", "7"]}
    accuracy, _ = trl_rewards()
    sources = ["knoveleng/open-rs", "math500"]
    assert accuracy(**given, data_source=sources) == [0.0, 1.0]
    assert trl_rewards(extraction="evaluation")[0](**given, data_source=sources) == [1.0, 1.0]


def test_a_completion_of_several_messages_is_the_text_that_the_model_wrote():
    completion = [
        {"role": "assistant", "reasoning_content": "3 + 4", "content": "", "tool_calls": [{"type": "function"}]},
        {"role": "tool", "name": "add", "content": "\\boxed{2}"},
        {"role": "assistant", "content": "The answer is $7$."},
    ]
    assert [reward(completions=[completion], ground_truth=["7"]) for reward in trl_rewards()] == [[1.0], [1.0]]
    parsed = [{"role": "assistant", "reasoning_content": "3 + 4", "content": "\\boxed{7}"}]
    assert trl_rewards()[1](completions=[parsed]) == [1.0]


@pytest.mark.parametrize("name", ["reasoning_content", "thinking"])
@pytest.mark.parametrize("opens_think", [None, True, False])
def test_a_think_section_that_trls_parser_moved_out_is_well_formed(name, opens_think):
    """The parser takes a section that the prompt opened, and one that the response opened, to the same field."""
    completion = [{"role": "assistant", name: "3 + 4", "content": "\\boxed{7}"}]
    accuracy, formatted = trl_rewards(opens_think=opens_think)
    assert formatted(completions=[completion]) == [1.0] == accuracy(completions=[completion], ground_truth=["7"])
    completion[0]["content"] = ""  # cut off while it thought
    assert formatted(completions=[completion]) == [0.0]
    completion[0] |= {name: "", "content": "\\boxed{7}"}
    assert formatted(completions=[completion]) == [0.0]


def test_what_trl_needs():
    assert [reward.__name__ for reward in trl_rewards()] == ["accuracy_reward", "format_reward"]  # it logs these names
    with pytest.raises(OptionsError, match="accuracy_weight is no option"):
        trl_rewards(accuracy_weight=2.0)
    with pytest.raises(OptionsError, match="no column ground_truth, reward_model or solution"):
        trl_rewards()[0](completions=["7"], answer=["7"])
