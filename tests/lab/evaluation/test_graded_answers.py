"""Reading graded answers, and what is said of files that hold none."""

import pytest
from graded_answers import ASKED, answered

from cw_plugin.lab.configs import differences
from cw_plugin.lab.errors import DataError
from cw_plugin.lab.evaluation.graded_answers import read_answers


def test_answers_are_named_by_model_and_step_and_grouped_by_question(tmp_path):
    answered(tmp_path / "out" / "base", "math500", [[1, 0], [0, 0], [1, 1]])
    answered(tmp_path / "out" / "base", "aime24", [[1.0]])
    for step in (9, 100):
        answered(tmp_path / "out" / f"GRPO-global_step_{step}", "aime24", [[True], [False]], step, temperature=0.7)
    moved = tmp_path / "out" / "base" / "aime24.jsonl"  # through Windows
    for file in (moved, moved.with_suffix(".yaml")):
        file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes().replace(b"\n", b"\r\n") + b"\r\n")
    answers, notes = read_answers(tmp_path / "out")
    assert notes == []
    assert [(a.model, a.step, a.benchmark, list(a.grades.values())) for a in answers] == [
        ("GRPO", 9, "aime24", [[1.0], [0.0]]),
        ("GRPO", 100, "aime24", [[1.0], [0.0]]),
        ("base", None, "aime24", [[1.0]]),
        ("base", None, "math500", [[1.0, 0.0], [0.0, 0.0], [1.0, 1.0]]),
    ]
    assert differences(answers[0].settings, answers[2].settings, ["evaluation.checkpoint", "evaluation.step"]) == {
        "actor_rollout_ref.rollout.temperature": (0.7, 0.6)
    }
    assert not any(key.startswith("trainer") for key in answers[0].settings)
    moved.write_text("".join(f'{{"input": "q", "gts": {gts}, "acc": 1}}\n' for gts in (1, 2, 1)))  # with another image
    assert list(read_answers(tmp_path / "out")[0][2].grades.values()) == [[1.0, 1.0], [1.0]]


@pytest.mark.parametrize("acc", ['"yes"', "NaN", "2", "-1", None])
def test_damaged_answers_are_refused_with_their_file_and_line(tmp_path, acc):
    file = answered(tmp_path / "base", "a", [[1]])
    line = '{"input": "q", "gts": "1", "acc": ' + (f"{acc}}}" if acc else "")
    file.write_text(f"{file.read_text()}{line}\n")
    with pytest.raises(DataError, match=r"a.jsonl, line 2 is no answer in JSON with input, gts and acc, a number"):
        read_answers(tmp_path)


def test_what_holds_no_answers_is_passed_over_or_named(tmp_path):
    answered(tmp_path / "base", "aime24", [[1]])
    (tmp_path / "base" / "amc23.yaml").write_text(ASKED.format(checkpoint="x", step=1, samples=1, temperature=1))
    (tmp_path / "run" / "7.jsonl").mkdir(parents=True)
    (tmp_path / "run" / "8.jsonl").write_text("")
    for number, text in enumerate(("a: 1", "[1", "", "evaluations: 1")):  # another program's
        (tmp_path / f"{number}.yaml").write_text(text)
        (tmp_path / f"{number}.jsonl").write_text("{}\n")
    (tmp_path / "latin1.yaml").write_bytes(b"name: caf\xe9\n")
    answered(tmp_path / "base" / ".trash", "aime24", [[0]])
    answers, notes = read_answers(tmp_path)
    assert [a.file for a in answers] == [tmp_path / "base" / "aime24.jsonl"]
    assert notes == ["base is not finished on amc23: evaluate it again to complete it."]
    (tmp_path / "base" / "aime24.jsonl").write_text("")
    with pytest.raises(DataError, match=r"aime24.jsonl is empty"):
        read_answers(tmp_path)
    (tmp_path / "base" / "aime24.yaml").write_text("evaluation: [1\n")
    with pytest.raises(DataError, match=r"aime24.yaml cannot be read"):
        read_answers(tmp_path)
