r"""The paper's five benchmarks as tasks of lighteval 0.13, on local parquet files in verl's schema.

lighteval loads this file by its path (``--custom-tasks``) and imports nothing of cw_plugin with it::

    CW_EVALUATION_DATA=DIR CW_EVALUATION_MAX_RESPONSE=30720 lighteval vllm model.yaml "cw:aime24|0,cw:math500|0" \
        --custom-tasks .../lighteval_tasks.py

``DIR/NAME/test.parquet`` is the task ``cw:NAME``. It asks the file's user turns; a system turn must be set as
``system_prompt`` of the model configuration. AIME24 and MATH-500 are lighteval's own tasks with this data. lighteval
does not have the other three; they are graded as open-rs does, with a boxed answer before any other.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
from lighteval.metrics.dynamic_metrics import MultilingualExtractiveMatchMetric
from lighteval.metrics.metrics_sample import PassAtK
from lighteval.metrics.utils.extractive_match_utils import ExprExtractionConfig, LatexExtractionConfig
from lighteval.metrics.utils.metric_utils import SampleLevelMetric
from lighteval.tasks.lighteval_task import LightevalTaskConfig
from lighteval.tasks.requests import Doc, SamplingMethod
from lighteval.tasks.tasks.aime import aime24
from lighteval.tasks.tasks.math_500 import math_500
from lighteval.utils.language import Language

DATA = Path(os.environ["CW_EVALUATION_DATA"])


def _question(line: dict[str, Any]) -> str:
    return str([turn["content"] for turn in line["prompt"] if turn["role"] == "user"][-1])


def number(line: dict[str, Any], task_name: str) -> Doc:
    """A question whose answer is a number."""
    return Doc(query=_question(line), choices=[line["reward_model"]["ground_truth"]], gold_index=0, task_name=task_name)


def latex(line: dict[str, Any], task_name: str) -> Doc:
    """A question whose answer is LaTeX, which lighteval finds only between dollar signs."""
    gold = f"${line['reward_model']['ground_truth']}$"
    return Doc(query=_question(line), choices=[gold], gold_index=0, task_name=task_name)


def _pass_at_1(gold: Any) -> SampleLevelMetric:
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


def _task(name: str) -> LightevalTaskConfig:
    numbers = name in ("aime24", "amc23")
    gold = ExprExtractionConfig() if numbers else LatexExtractionConfig()
    task = {"aime24": aime24, "math500": math_500}.get(name)
    return LightevalTaskConfig(
        name=f"cw:{name}",
        prompt_function=number if numbers else latex,
        metrics=[_pass_at_1(gold)] if task is None else task.metrics,
        hf_repo=str(DATA / name),
        hf_subset="default",
        hf_avail_splits=["test"],
        evaluation_splits=["test"],
        generation_size=int(os.environ["CW_EVALUATION_MAX_RESPONSE"]),
    )


TASKS_TABLE = [_task(folder.name) for folder in sorted(DATA.iterdir())]
