"""Graded answers, as ``cw-grpo evaluate`` leaves them."""

import json
from pathlib import Path

ASKED = """evaluation:
  checkpoint: {checkpoint}
  step: {step}
  samples: {samples}
actor_rollout_ref: {{rollout: {{gpu_memory_utilization: 0.8, temperature: {temperature}}}}}
trainer: {{n_gpus_per_node: 4}}
"""


def answered(
    folder: Path, benchmark: str, grades: list[list], step=None, temperature=0.6, checkpoint=None, ground_truths=None
) -> Path:
    """As cw-grpo evaluate leaves it: for each question, the grades of its samples."""
    folder.mkdir(parents=True, exist_ok=True)
    truths = ground_truths or [f"x_{i}" for i in range(len(grades))]
    rows = [
        {"input": f"q{i}", "output": "\u2028", "gts": truths[i], "score": acc, "acc": acc}
        for i, several in enumerate(grades)
        for acc in several
    ]
    values = {"step": json.dumps(step), "samples": len(grades[0]), "temperature": temperature}
    (folder / f"{benchmark}.yaml").write_text(ASKED.format(checkpoint=checkpoint or folder, **values))
    file = folder / f"{benchmark}.jsonl"
    file.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return file
