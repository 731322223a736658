"""Does the runs of stages.py that RESULTS lacks, one after the other; run again, it goes on.

    RESULTS=examples/study/pretrained/results python examples/study/pretrained/train.py MODEL

MODEL is the folder that model.py writes. A run that ends leaves two files in RESULTS, whose names begin with the run's:
``.parquet`` has a row for each step, ``-tokens.parquet`` one for each token of the recorded steps. A run that is killed
leaves nothing, and starts again. A second process in the same folder does other runs at the same time.
"""

import ctypes
import fcntl
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd
import torch
import typer
from datasets import Dataset
from torch import Tensor
from transformers import PrinterCallback
from trl import GRPOTrainer

from cw_plugin.files import write_whole
from cw_plugin.hosts.trl import CWGRPOConfig, CWGRPOTrainer
from cw_plugin.lab.intervals import pass_at_k

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
import stages  # noqa: E402
from arithmetic import Problem, is_right, split_of_problems  # noqa: E402
from sampling import ONE_TOKEN, sampled, sampled_ids  # noqa: E402
from shared_prefixes import log_probs_and_entropies  # noqa: E402
from stages import Run  # noqa: E402

WEIGHTS = {  # of the other methods: none
    "cw_grpo": "gaussian",
    "positive": "variants:positive",
    "negative": "variants:negative",
    "state": "state",
}
OF_TRL = {
    "entropy_bonus": {"entropy_coef": 0.01},  # the coefficient of PPO's paper (arXiv:1707.06347)
    "clip_higher": {"epsilon_high": 0.28},  # DAPO's (arXiv:2503.14476)
}
TWO_UPDATES = ("grpo_twice", "clip_higher")  # of one batch: after the first update alone there is nothing to clip
LOGGED = ("extreme_gradient_share", "extreme_balance", "downweighted_share", "covariance_before", "covariance_after")
AT_ONCE = 10  # problems of a validation
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class Direction:
    """How the updates of a step move the entropy of its batch, to first order.

    H is the mean over the batch's tokens of the policy's entropy at their position, in nats. The gradient of the loss
    says where plain gradient descent would go, and the change of the weights, where Adam went.
    """

    def __init__(self, model: Any, batch: dict[str, Any]) -> None:
        ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
        is_answer = batch["completion_mask"] > 0
        is_token = torch.cat([batch["prompt_mask"] > 0, is_answer], dim=1)
        with torch.autocast(DEVICE, torch.bfloat16):
            _, of_position = log_probs_and_entropies(model, ids, is_token, is_answer.size(1))
        entropy = of_position[is_answer].mean()
        weights = list(model.parameters())
        self.of_entropy = torch.autograd.grad(entropy, weights)
        self.before = [weight.detach().clone() for weight in weights]
        self.along_gradient: float | None = None

    def see_gradient(self, model: Any) -> None:
        """Look at the gradient of the loss, after the backward pass of the step's first update."""
        if self.along_gradient is None:
            descent = [-weight.grad for weight in model.parameters()]
            self.along_gradient = cosine(self.of_entropy, descent)

    def measured(self, model: Any) -> dict[str, float | None]:
        """After the step's updates: two cosines with the gradient of H, and the change of H in nats."""
        change = [after.detach() - before for after, before in zip(model.parameters(), self.before, strict=True)]
        return {
            "entropy_along_gradient": self.along_gradient,
            "entropy_along_update": cosine(self.of_entropy, change),
            "entropy_change": float(product(self.of_entropy, change)),
        }


def return_memory() -> None:
    """Give the system what is free. With the settings of run.sh, glibc keeps it in pieces: 12 GB after some steps."""
    ctypes.CDLL("libc.so.6").malloc_trim(0)


def product(ours: Iterable[Tensor], theirs: Iterable[Tensor]) -> Tensor:
    return torch.stack([(a * b).sum(dtype=torch.float64) for a, b in zip(ours, theirs, strict=True)]).sum()


def cosine(ours: Sequence[Tensor], theirs: Sequence[Tensor]) -> float:
    lengths = product(ours, ours).sqrt() * product(theirs, theirs).sqrt()
    return float(product(ours, theirs) / lengths)


class SharedPrefixes(GRPOTrainer):
    """GRPOTrainer that runs equal beginnings of a batch's rows once. The loss, and so the gradient, is the same."""

    def _get_per_token_logps_and_entropies(
        self,
        model: Any,
        input_ids: Tensor,
        attention_mask: Tensor,
        logits_to_keep: int,
        batch_size: int | None = None,
        compute_entropy: bool = False,
        **_: Any,
    ) -> tuple[Tensor, Tensor | None, None]:
        model = self.accelerator.unwrap_model(model)
        with self.accelerator.autocast():
            log_probs, of_position = log_probs_and_entropies(model, input_ids, attention_mask > 0, logits_to_keep)
        return log_probs, of_position if compute_entropy else None, None


class StudyTrainer(CWGRPOTrainer, SharedPrefixes):
    """CWGRPOTrainer that keeps a row of each step in ``rows``, and the tokens of some steps in ``tokens``.

    It validates on ``held_out``; before the first step, too, if ``tries_start``.
    """

    def __init__(self, run: Run, held_out: list[Problem], tries_start: bool, **kwargs: Any) -> None:
        self.run_, self.held_out, self.tries_start = run, held_out, tries_start
        self.rows: list[dict[str, Any]] = [{"step": 0}]
        self.tokens: list[pd.DataFrame] = []
        self.direction: Direction | None = None  # of a recorded step, until it ends
        super().__init__(reward_funcs=self.reward, **kwargs)
        self.remove_callback(PrinterCallback)

    def reward(self, completions: list[str], answer: list[str], **_: Any) -> list[float]:
        right = [float(is_right(text, truth)) for text, truth in zip(completions, answer, strict=True)]
        self.rows.append({"step": len(self.rows), "reward": sum(right) / len(right)})
        return right

    def end_step(self) -> None:
        """What is measured after the updates of a step."""
        if self.direction is not None:
            self.rows[-1] |= self.direction.measured(self.model)
            self.direction = None
        return_memory()
        self.validate()
        return_memory()

    def validate(self) -> None:
        """Count the right answers to each held-out problem, if it is time to."""
        step = self.rows[-1]["step"]
        if step % stages.TRIED_EVERY or (step == 0 and not self.tries_start):
            return
        right = [0] * len(self.held_out)
        self.model.eval()
        for first in range(0, len(right), AT_ONCE):
            some = self.held_out[first : first + AT_ONCE]
            ids = self.processing_class([row["prompt"] for row in some], return_tensors="pt").input_ids.to(DEVICE)
            with torch.autocast(DEVICE, torch.bfloat16):
                for place, text, copies in sampled(self.model, self.processing_class, ids, stages.TRIES, stages.LIMIT):
                    if is_right(text, some[place]["answer"]):
                        right[first + place] += copies
        self.model.train()
        self.rows[-1]["right"] = right
        self.rows[-1] |= {
            f"pass@{k}": sum(pass_at_k(stages.TRIES, count, k) for count in right) / len(right) for k in (1, 4, 16, 64)
        }
        print(f"{self.run_.name}, step {step}:", {k: v for k, v in self.rows[-1].items() if k != "right"}, flush=True)

    def _generate_single_turn(self, prompt_ids: list[list[int]], *args: Any, **kwargs: Any) -> tuple[Any, None]:
        """What TRL does, where answers share a pass until they differ. TRL gives each prompt once for each answer."""
        self.end_step()
        prompts = torch.tensor(prompt_ids[:: stages.ANSWERS], device=DEVICE)
        answers: list[list[list[int]]] = [[] for _ in prompts]
        end = self.processing_class.eos_token_id
        with torch.autocast(DEVICE, torch.bfloat16):
            for place, ids, copies in sampled_ids(self.model, end, prompts, stages.ANSWERS, stages.LIMIT):
                answers[place] += [ids] * copies
        return [ids for of_prompt in answers for ids in of_prompt], None

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        batch = super()._generate_and_score_completions(inputs)
        step, every = self.rows[-1]["step"], self.run_.recorded_every
        if every and (step == 1 or step % every == 0):
            self.tokens.append(self.recorded(batch).assign(step=step))
            self.model.eval()
            self.direction = Direction(self.model, batch)
            self.model.train()
        return batch

    def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
        loss = super().training_step(*args, **kwargs)
        if self.direction is not None:
            self.direction.see_gradient(self.model)
        return loss

    @torch.no_grad()
    def recorded(self, batch: dict[str, Any]) -> pd.DataFrame:
        """A row for each token of a batch, with the entropy of the policy at its position, in nats."""
        self.model.eval()
        log_probs, of_position, *_ = self._get_per_token_logps_and_entropies(
            self.model,
            torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1),
            torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1),
            batch["completion_ids"].size(1),
            batch_size=self.args.per_device_train_batch_size,
            compute_entropy=True,
        )
        self.model.train()
        row, position = batch["completion_mask"].nonzero(as_tuple=True)
        advantages = batch["advantages"]
        weighted = advantages if advantages.ndim == 2 else advantages[:, None].expand_as(log_probs)
        columns: dict[str, Tensor] = {
            "group": row // stages.ANSWERS,
            "row": row,
            "position": position,
            "token_id": batch["completion_ids"][row, position],
            "log_prob": log_probs[row, position],
            "entropy": of_position[row, position],
            "weighted_advantage": weighted[row, position],
            "advantage": self.grpo_advantages()[row],
        }
        whole = {"group", "row", "position", "token_id"}
        return pd.DataFrame(
            {name: of.cpu().numpy().astype("int32" if name in whole else "float32") for name, of in columns.items()}
        )

    def grpo_advantages(self) -> Tensor:
        """(R - mean R) / (std R + 1e-4) of each row, as TRL computes it over a prompt's answers."""
        grouped = self._cw_rewards.view(-1, stages.ANSWERS)
        centred = grouped - grouped.mean(1, keepdim=True)
        return (centred / (grouped.std(1, keepdim=True) + 1e-4)).flatten()


def config(run: Run, folder: str) -> CWGRPOConfig:
    updates = 2 if run.method in TWO_UPDATES else 1
    return CWGRPOConfig(
        output_dir=folder,
        model_init_kwargs={"dtype": "float32", "attn_implementation": ONE_TOKEN},
        seed=run.seed,
        max_steps=run.steps * updates,
        num_iterations=updates,
        per_device_train_batch_size=stages.PROMPTS * stages.ANSWERS,
        gradient_accumulation_steps=1,
        num_generations=stages.ANSWERS,
        max_completion_length=stages.LIMIT,
        temperature=1.0,
        beta=0.0,
        learning_rate=float(run.lr),
        lr_scheduler_type="constant_with_warmup",
        warmup_steps=stages.WARM_UP * updates,
        cw_weights=WEIGHTS.get(run.method, "none"),
        cw_record_every=0,
        logging_steps=updates,
        use_cpu=DEVICE == "cpu",
        bf16=True,
        gradient_checkpointing=False,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        **OF_TRL.get(run.method, {}),
    )


def train(
    run: Run, model: Path, held_out: list[Problem], trained_on: list[Problem], tries_start: bool
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """A row for each step, from step 0, which is a validation alone; and a row for each recorded token."""
    began = time.process_time()
    torch.manual_seed(run.seed)
    with tempfile.TemporaryDirectory() as folder:
        trainer = StudyTrainer(
            run,
            held_out,
            tries_start,
            model=str(model),
            args=config(run, folder),
            train_dataset=Dataset.from_list(trained_on),
        )
        trainer.train()
        trainer.end_step()
    logs = [entry for entry in trainer.state.log_history if "grad_norm" in entry]
    for row, log in zip(trainer.rows[1:], logs, strict=True):
        row |= {name: log[name] for name in ("entropy", "grad_norm", "completions/mean_length")}
        row |= {name: log[f"cw_grpo/{name}"] for name in LOGGED}
    trainer.rows[-1]["cpu_seconds"] = time.process_time() - began
    return pd.DataFrame(trainer.rows), pd.concat(trainer.tokens) if trainer.tokens else pd.DataFrame()


def hardware() -> str:
    if DEVICE == "cuda":
        return torch.cuda.get_device_name()
    models = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    name = models[0].partition(":")[2].strip() if models else platform.machine()
    return f"{name}, {torch.get_num_threads()} thread"


def commit() -> str:
    return subprocess.check_output(["git", "-C", str(HERE), "rev-parse", "--short=9", "HEAD"], text=True).strip()


@contextmanager
def claimed(file: Path) -> Iterator[bool]:
    """Whether no other process does this run; the claim ends with the process."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True


def train_missing(
    runs: list[Run], results: Path, model: Path, held_out: list[Problem], trained_on: list[Problem]
) -> None:
    """Do those of ``runs`` that no other process does and that ``results`` lacks.

    All runs start from the same model, so only the first one validates it before training.
    """
    for run in runs:
        done = results / f"{run.name}.parquet"
        with claimed(Path(tempfile.gettempdir()) / f"{run.name}.lock") as is_free:
            if not is_free or done.exists():
                continue
            version = commit()
            steps, tokens = train(run, model, held_out, trained_on, tries_start=run == runs[0])
            if len(tokens):
                write_whole(results / f"{run.name}-tokens.parquet", lambda part: write(tokens, part))  # noqa: B023
            steps = steps.assign(hardware=hardware(), commit=version)
            write_whole(done, lambda part: write(steps, part))  # noqa: B023


def main(model: Path) -> None:
    train_missing(stages.RUNS, Path(os.environ["RESULTS"]).resolve(), model, *split_of_problems())


def write(rows: pd.DataFrame, path: Path) -> None:
    rows.to_parquet(path, compression="zstd", index=False)


if __name__ == "__main__":
    if "RESULTS" not in os.environ:
        sys.exit(__doc__)
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    typer.run(main)
