"""Folders of made-up runs and answers, as trainings and ``cw-grpo evaluate`` leave them, and reports of them."""

import csv
import json
import tempfile
from pathlib import Path

import pandas as pd
from graded_answers import answered
from interpreter import cli

REWARD, ENTROPY, NORM, ACCURACY = "critic/score/mean", "actor/entropy", "actor/grad_norm", "val-core/x/acc/mean@2"


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def write_metrics(folder: Path, steps: dict[int, dict], name: str = "metrics.jsonl") -> Path:
    lines = [json.dumps({"step": step, "data": data}) + "\n" for step, data in steps.items()]
    write(folder / name, "".join(lines))
    return folder


def write_state(folder: Path, log: list[dict]) -> None:
    write(folder / "trainer_state.json", json.dumps({"log_history": log}))


def logged(folder: Path, weights: str | None, steps: dict[int, dict], seed: int = 1, lr: float = 1.0) -> Path:
    """A run of verl with these metrics."""
    algorithm = {"adv_estimator": "cw_grpo"} | ({"cw_grpo": {"weights": weights}} if weights else {})
    config = {"algorithm": algorithm, "data": {"seed": seed}, "trainer": {"lr": lr}}
    write(folder / ".hydra" / "config.yaml", json.dumps(config))  # JSON is YAML
    return write_metrics(folder, steps)


def a_run(folder: Path, weights: str | None = None, seed: int = 1, reward: float = 1.0, norm: float = 1.0,
          accuracy: float = 0.5, steps: int = 200, lr: float = 1.0) -> Path:  # fmt: skip
    """``reward`` is that of the last quarter of 200 steps, ``norm`` that of the first 100."""
    values = {step: {REWARD: reward if step > 150 else 9.0, ENTROPY: 0.1, NORM: norm if step <= 100 else 50.0}
              for step in range(1, steps + 1)}  # fmt: skip
    values[steps][ACCURACY] = accuracy
    return logged(folder, weights, {0: {ACCURACY: 0.25}} | values, seed, lr)


def write_answers(folder: Path, step: int | None, checkpoint: Path | None = None, **right: tuple[int, int]) -> None:
    """Of each benchmark, how many of how many questions are answered rightly."""
    for name, (number, of) in right.items():
        grades = [[float(place < number)] for place in range(of)]
        answered(folder, name, grades, step, 0.6 if step else 1.0, checkpoint or "a/model")


def report(*arguments: object) -> tuple[int, str]:
    """The exit code, and what is printed."""
    result = cli("report", *arguments)
    return result.exit_code, result.stdout + result.stderr


def report_of(*runs: object, out: Path | None = None) -> tuple[Path, str]:
    """The folder of their report, and what is printed."""
    out = out or Path(tempfile.mkdtemp())
    code, printed = report(*runs, "--out", out)
    assert code == 0, printed
    return out, printed


def rows_of(file: Path) -> list[list[str]]:
    with file.open(encoding="utf-8") as lines:
        return list(csv.reader(lines))


def differences(*runs: object, out: Path | None = None) -> tuple[dict[str, list[str]], str]:
    """The table of differences, by its first column, and what is printed."""
    out, printed = report_of(*runs, out=out)
    return {row[0]: row[1:] for row in rows_of(out / "comparison.csv")}, printed


def scores(*runs: object, out: Path | None = None) -> pd.DataFrame:
    """The table of scores."""
    out, _ = report_of(*runs, out=out)
    return pd.read_csv(out / "table2.csv", dtype=str, keep_default_na=False)
