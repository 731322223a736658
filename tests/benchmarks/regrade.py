"""Grade the answers of an evaluation a second time, with lighteval's extractor, and list where the two disagree.

    LIGHTEVAL_ENVIRONMENT/bin/python tests/benchmarks/regrade.py evaluation/NAME [...]

Runs in an environment with lighteval 0.13 (pip install "lighteval==0.13.0" "xxhash<4" "huggingface_hub<2" rich), and
imports nothing of cw_plugin. AIME24 and MATH-500 are graded as lighteval's own tasks, the others as open-rs
does: a boxed answer comes before any other.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from lighteval.metrics.dynamic_metrics import MultilingualExtractiveMatchMetric
from lighteval.metrics.metrics_sample import PassAtK
from lighteval.metrics.utils.extractive_match_utils import ExprExtractionConfig, LatexExtractionConfig
from lighteval.metrics.utils.metric_utils import SampleLevelMetric
from lighteval.models.model_output import ModelResponse
from lighteval.tasks.requests import Doc, SamplingMethod
from lighteval.tasks.tasks.aime import aime24
from lighteval.tasks.tasks.math_500 import math_500
from lighteval.utils.language import Language
from rich.console import Console
from rich.table import Table


def pass_at_1(gold: Any) -> SampleLevelMetric:
    match = MultilingualExtractiveMatchMetric(
        language=Language.ENGLISH,
        fallback_mode="first_match",
        precision=5,
        gold_extraction_target=(gold,),
        pred_extraction_target=(ExprExtractionConfig(), LatexExtractionConfig(boxed_match_priority=0)),
        aggregation_function=max,
    )
    return SampleLevelMetric(
        metric_name="pass@k",
        sample_level_fn=PassAtK(strip_strings=True, sample_scoring_function=match, k=1, n=1),
        category=SamplingMethod.GENERATIVE,
        corpus_level_fn=np.mean,
        higher_is_better=True,
    )


def metric_of(benchmark: str) -> Any:
    """lighteval's metric of one of its own tasks, or open-rs's."""
    if task := {"aime24": aime24, "math500": math_500}.get(benchmark):
        return next(metric for metric in task.metrics if metric.metric_name.startswith("pass@k"))
    return pass_at_1(ExprExtractionConfig() if benchmark == "amc23" else LatexExtractionConfig())


def main() -> None:
    files = [file for folder in sys.argv[1:] for file in sorted(Path(folder).glob("*.jsonl"))]
    if not files:
        sys.exit("no answers (*.jsonl) there; give folders that eval_benchmarks.sh has written")
    console = Console(width=140, highlight=False)
    table = Table(
        "answers", "how many", "right for both", "wrong for both", "right here alone", "right for lighteval alone"
    )
    disagreements = []
    for file in files:
        metric = metric_of(file.stem)
        counts = {(ours, theirs): 0 for ours in (True, False) for theirs in (True, False)}
        for line in file.read_text(encoding="utf-8").split("\n")[:-1]:
            answer = json.loads(line)
            # lighteval finds LaTeX only between dollar signs.
            gold = answer["gts"] if file.stem in ("aime24", "amc23") else f"${answer['gts']}$"
            doc = Doc(query=answer["input"], choices=[gold], gold_index=0, task_name=file.stem)
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
        console.print(f"{who}: {file.parent.name}/{file.stem}, {answer['input'][-160:]!r}", markup=False)
        console.print(f"  ground truth {answer['gts']!r}, read here as {answer.get('pred')!r}", markup=False)
        console.print(f"  ... {answer['output'][-160:]!r}", markup=False)


if __name__ == "__main__":
    main()
