"""Draw the problems that a run trains on, as verl and TRL do: at random, without those whose prompt is too long.

    python draw.py FROM.parquet TO.parquet --rows 2400 --seed 42 --model MODEL --max-prompt 512

No problem is drawn twice before all have been drawn. MODEL's chat template makes the prompts, and its tokenizer counts
their tokens. If TO.parquet is there, it is kept, also without FROM.parquet; one that says that it was drawn in another
way is refused.
"""

import argparse
import hashlib
import json
import os
import random
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from transformers import AutoTokenizer

from cw_plugin.files import write_whole

DRAWN = b"cw_plugin.drawn"  # metadata of the file: how it was drawn


def draw(rows: int, among: list[int], seed: int) -> list[int]:
    """``rows`` of the numbers in ``among``, which is shuffled anew as often as it is used up."""
    generator, drawn = random.Random(seed), []
    while len(drawn) < rows:
        drawn += generator.sample(among, min(len(among), rows - len(drawn)))
    return drawn


def differing(target: Path, settings: dict[str, Any]) -> list[str]:
    """The settings by which a file was drawn otherwise; none if it does not say how it was drawn."""
    metadata = pq.read_metadata(target).metadata or {}
    before = json.loads(metadata.get(DRAWN, b"{}"))
    return [name for name in settings if name in before and before[name] != settings[name]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--rows", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--max-prompt", type=int, required=True, help="in tokens")
    given = parser.parse_args()

    settings: dict[str, Any] = {"rows": given.rows, "seed": given.seed, "max-prompt": given.max_prompt}
    settings["model"] = os.path.realpath(given.model) if os.path.exists(given.model) else given.model
    if given.source.exists():
        problems = pq.read_table(given.source)
        settings["source"] = hashlib.sha256(json.dumps(problems.to_pylist(), default=str).encode()).hexdigest()
    elif not given.target.exists():
        parser.error(f"{given.source} does not exist; cw-grpo prepare open-rs writes it, and DATA_DIR names its folder")
    if given.target.exists():
        if changed := differing(given.target, settings):
            parser.error(
                f"{given.target} was drawn with another {', '.join(changed)}; to train on it, leave that as it was, "
                "else set another OUT, or remove the file to draw anew"
            )
        return

    tokenizer = AutoTokenizer.from_pretrained(given.model)
    prompts = problems["prompt"].to_pylist()
    texts = tokenizer.apply_chat_template(prompts, add_generation_prompt=True, tokenize=False)
    lengths = map(len, tokenizer(texts, add_special_tokens=False)["input_ids"])
    short = [row for row, length in enumerate(lengths) if length <= given.max_prompt]
    if not short:
        parser.error(f"every prompt in {given.source} has more than --max-prompt {given.max_prompt} tokens")
    drawn = problems.take(draw(given.rows, short, given.seed))
    drawn = drawn.replace_schema_metadata((drawn.schema.metadata or {}) | {DRAWN: json.dumps(settings)})
    write_whole(given.target, lambda part: pq.write_table(drawn, part))
    print(f"{given.target}: {given.rows} problems, drawn among {len(short)} of {len(prompts)}")


if __name__ == "__main__":
    main()
