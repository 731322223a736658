"""Print what a finished quickstart run has shown: where its files are, and its validation before and after.

python summary.py RUN_DIR
"""

import sys
from pathlib import Path

import pandas as pd

from cw_plugin.lab.intervals import over_questions
from cw_plugin.lab.reports.runs import read_run

VALIDATION = {"score": "reward", "acc": "right answers", "format": "matched think tags"}
FILES = {  # of verl's quickstart, and of TRL's
    "metrics of each step": "metrics.jsonl",
    "metrics of the run": "trainer_state.json",
    "output of training": "train.log",
    "validation answers": "validation/",
    "trained model": "model/",
    "tables and figures": "report/report.html",
    "tokens and weights": "report/tokens-1.html",
    "TensorBoard's log": "tensorboard/",
}


def right_by_problem(file: Path) -> pd.Series:
    """The share of right answers to each problem, over its wordings, from a file of verl's validation answers."""
    answers = pd.read_json(file, lines=True, dtype={"gts": str})
    numbers = answers.input.str.findall(r"\d+").str.join(" ")
    return answers.acc.groupby(numbers + " " + answers.gts).mean()


def print_gain(answers: Path) -> None:
    """How many more answers are right after the last validation than after the first, with a standard error."""
    steps = sorted(int(file.stem) for file in answers.glob("*.jsonl"))
    if len(steps) < 2:
        return
    before, after = (right_by_problem(answers / f"{step}.jsonl") for step in (steps[0], steps[-1]))
    gain = over_questions({"problems": after}, {"problems": before})
    error = (after - before).sem()
    print(
        f"Right answers to {len(after)} held-out problems: {before.mean():.3f} before, {after.mean():.3f} after step"
        f" {steps[-1]}.\nThe gain is {gain.value:.3f} with a standard error of {error:.3f}; its 95% interval is"
        f" {gain.low:.3f} to {gain.high:.3f}."
    )


def main() -> None:
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    folder = Path(sys.argv[1])
    run = read_run(folder)  # of every start, if there were several
    if run.series("actor/entropy").empty:
        sys.exit(f"{folder} holds no training step; see {folder}/train.log")
    for measure, what in VALIDATION.items():
        for _, values in run.validation(measure).dropna().items():
            if len(values) > 1:
                ends = [f"{value:.3f} (step {step})" for step, value in values.iloc[[0, -1]].items()]
                print(f"validation: {what:<18}  {'  '.join(ends)}")
    for what, file in FILES.items():
        if (folder / file).exists():
            print(f"{what:<21} {folder}/{file}")
    print_gain(folder / "validation")


if __name__ == "__main__":
    main()
