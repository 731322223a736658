"""Grade the answers of an evaluation a second time, with lighteval's extractor, and list where the two disagree.

    LIGHTEVAL_ENVIRONMENT/bin/python tests/benchmarks/regrade.py evaluation/NAME [...]

Runs in an environment with lighteval 0.13 (pip install ".[lighteval]"), and imports nothing of cw_plugin: the
metrics are those that ENGINE=lighteval uses, read from lighteval_tasks.py by its path.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from lighteval.models.model_output import ModelResponse
from rich.console import Console
from rich.table import Table

TASKS = Path(__file__).parents[2] / "cw_plugin" / "evaluation" / "lighteval_tasks.py"


def load_tasks(names: set[str]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as data:
        for name in names:
            (Path(data) / name).mkdir()
        os.environ |= {"CW_EVALUATION_DATA": data, "CW_EVALUATION_MAX_RESPONSE": "1"}
        spec = importlib.util.spec_from_file_location("lighteval_tasks", TASKS)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return {task.name.removeprefix("cw:"): task for task in module.TASKS_TABLE}


def main() -> None:
    files = [file for folder in sys.argv[1:] for file in sorted(Path(folder).glob("*.jsonl"))]
    if not files:
        sys.exit("no answers (*.jsonl) there; give folders that eval_benchmarks.sh has written")
    tasks = load_tasks({file.stem for file in files})
    console = Console(width=140, highlight=False)
    table = Table(
        "answers", "how many", "right for both", "wrong for both", "right here alone", "right for lighteval alone"
    )
    disagreements = []
    for file in files:
        task = tasks[file.stem]
        metric = next(metric for metric in task.metrics if metric.metric_name.startswith("pass@k"))
        counts = {(ours, theirs): 0 for ours in (True, False) for theirs in (True, False)}
        for line in file.read_text(encoding="utf-8").splitlines():
            answer = json.loads(line)
            row = {
                "prompt": [{"role": "user", "content": answer["problem"]}],
                "reward_model": {"ground_truth": answer["ground_truth"]},
            }
            doc = task.prompt_function(row, task.name)
            response = ModelResponse(text=[answer["output"]], text_post_processed=[answer["output"]])
            theirs = metric.sample_level_fn.compute(doc=doc, model_response=response) == 1.0
            ours = answer["acc"] == 1.0
            counts[ours, theirs] += 1
            if ours != theirs:
                disagreements.append((file, answer, ours))
        order = [(True, True), (False, False), (True, False), (False, True)]
        table.add_row(
            f"{file.parent.name}/{file.stem}", str(sum(counts.values())), *(str(counts[key]) for key in order)
        )
    console.print(table)
    for file, answer, ours in disagreements:
        who = "right here alone" if ours else "right for lighteval alone"
        console.print(
            f"{who}: {file.parent.name}/{file.stem} {answer['index']}, sample {answer['sample']}", markup=False
        )
        console.print(f"  ground truth {answer['ground_truth']!r}, read here as {answer['pred']!r}", markup=False)
        console.print(f"  ... {answer['output'][-160:]!r}", markup=False)


if __name__ == "__main__":
    main()
