"""The models that the runs of the size study start from: the study's model, but of another width.

    python examples/study/sizes/teach.py 64    # writes model-64/ and a row of taught.csv, both beside this file

A model has 3 layers, heads of 32 and an MLP of 4 times the width. It is taught until enough of its answers are right.
"""

import sys
import time
from pathlib import Path

import pandas as pd
import typer
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from transformers import Qwen2ForCausalLM

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "boundary")]
import task  # noqa: E402
from train import accuracy  # noqa: E402

NO_END = 10**6  # steps of a cosine of which so little is used that the learning rate stays at its peak
AVERAGE = 0.98  # of the weights, at every step; the average is what is tried and saved
BELOW, EVERY = 0.2, 10  # nats a token, from which on it is tried, and after how many steps
TRIED, ENOUGH, HIGH = 0.47, 0.46, 0.50  # right ones of 1,024 answers; then of 4,096 others, at which teaching ends


def untaught(width: int) -> Qwen2ForCausalLM:
    """The study's model with another width, on which the number of heads depends."""
    return task.qwen2(task.make_tokenizer(), 4 * width, width // 32, 128, width)


def teach(width: int, folder: Path) -> dict[str, float]:
    """Save a taught model, and return what taught.csv says of it."""
    tokenizer, model, began = task.make_tokenizer(), untaught(width), time.monotonic()
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(AVERAGE))
    how = tokenizer, task.MAX_NEW_TOKENS
    for step, loss in task.taught_steps(model, tokenizer, NO_END, task.PEAK_LR * 128 / width):
        average.update_parameters(model)
        if step % EVERY == 0 and loss < BELOW:
            right = accuracy(average.module, *how, 4)
            print(f"width {width}, step {step}: {right:.3f} right, {time.monotonic() - began:.0f} s", flush=True)
            if right >= TRIED and (right := accuracy(average.module, *how, 16)) >= ENOUGH:
                break
    if right > HIGH:
        sys.exit(
            f"width {width}: {right:.1%} of the answers are right, more than {HIGH:.0%}; "
            "lower EVERY in teach.py and run again"
        )
    seen = accuracy(average.module, *how, 16, "train")
    task.save(average.module, tokenizer, folder)
    seconds = round(time.monotonic() - began)
    return {"width": width, "steps": step, "right": right, "right in training problems": seen, "seconds": seconds}


def main(width: int) -> None:
    """Write model-WIDTH/ and a row of taught.csv, both beside this file, unless they are there."""
    if width % 32:
        raise typer.BadParameter(f"a width of {width} is no multiple of 32, which each head has")
    folder, table = HERE / f"model-{width}", HERE / "taught.csv"
    if not (folder / "config.json").exists():
        row = pd.DataFrame([teach(width, folder)])
        row.to_csv(table, mode="a", header=not table.exists(), index=False, float_format="%.4f")


if __name__ == "__main__":
    typer.run(main)
