"""The last lines of the quickstart, on answers whose gain is known."""

import pytest

pytest.importorskip("verl")

import json
import runpy
from pathlib import Path

SUMMARY = Path(__file__).parents[2] / "examples" / "cpu" / "summary.py"


def answer(question: str, truth: int, acc: float) -> str:
    return json.dumps({"input": f"user\n{question}\nassistant\n", "gts": str(truth), "acc": acc}) + "\n"


def test_the_gain_is_a_mean_over_problems_not_over_wordings(tmp_path, capsys):
    print_gain = runpy.run_path(str(SUMMARY))["print_gain"]
    problems = {"What is 2 + 1?": 3, "Compute 2 - 1.": 1, "What is 5 + 4?": 9}
    other_wording = "Ann has 5 apples and gets 4 more."  # of the last problem
    (tmp_path / "0.jsonl").write_text("".join(answer(asked, truth, 0) for asked, truth in problems.items()))
    print_gain(tmp_path)
    assert capsys.readouterr().out == ""  # one validation has no gain
    right = [answer("What is 2 + 1?", 3, 1), answer("Compute 2 - 1.", 1, 0)]
    half = [answer("What is 5 + 4?", 9, 1), answer(other_wording, 9, 0)]
    (tmp_path / "20.jsonl").write_text("".join(right + half))
    print_gain(tmp_path)
    printed = capsys.readouterr().out
    assert "to 3 held-out problems: 0.000 before, 0.500 after step 20." in printed
    # 1, 0 and 0.5 have a standard deviation of 0.5; Student's t with two degrees of freedom is 4.3027.
    assert "The gain is 0.500 with a standard error of 0.289; its 95% interval is -0.742 to 1.742." in printed
