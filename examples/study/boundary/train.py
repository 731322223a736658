"""Does the runs of plan.py, JOBS at a time, and adds each to RESULTS/metrics.parquet as it ends; run again, it goes on.

    RESULTS=examples/study/boundary/results python examples/study/boundary/train.py boundary    # or another of PLANS

A run is TRL's GRPOTrainer, or CWGRPOTrainer, under the settings of the run.
"""

import functools
import math
import multiprocessing
import os
import random
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from torch import Tensor
from transformers import PrinterCallback

from cw_plugin.hosts.trl import CWGRPOConfig, CWGRPOTrainer
from cw_plugin.lab.rewards.boxed import final_boxed
from cw_plugin.lab.rewards.think import answer_section, matched
from cw_plugin.lab.rewards.trl import response_text

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
import task  # noqa: E402
from plan import PLANS, LeagueRun, Run, add, finished  # noqa: E402
from sampling import sampled  # noqa: E402
from study import JOBS, end_with_the_study, run_all  # noqa: E402

PROMPTS, RESPONSES = 8, 8  # in a step
CLIP_COV = {"ratio": 0.0002, "low": 1.0, "high": 5.0}  # its authors' settings; they also set PPO's clip to 1
OF_TRL = {  # methods that TRL has, or that take a setting of TRL beside the weights "none"
    "grpo": {},
    "clip_cov": {"epsilon": 1.0},
    "entropy_bonus": {"entropy_coef": 0.01},  # the coefficient of PPO's paper (arXiv:1707.06347)
    "clip_higher": {"epsilon_high": 0.28},  # DAPO's (arXiv:2503.14476)
}
AT_ONCE = 32  # problems of a validation; more of them do not fit the processor's cache
OURS = ("extreme_gradient_share", "extreme_balance", "downweighted_share", "covariance_before", "covariance_after")


def grade(text: str, product: int) -> tuple[float, float]:
    """Whether a response is right, and whether its think tags are: both parts of cw_plugin.lab.rewards.compute_score.

    All answers here are whole numbers, so that comparing digits takes the place of math-verify.
    """
    right = final_boxed(answer_section(text)) == str(product)
    return float(right), matched(text, False)


def kept_by_clip_cov(log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
    """0 for the tokens whose gradient Clip-Cov drops in this update, else 1 (arXiv:2505.22617; verl's ``clip_cov``).

    All have the shape (rows, time), or (rows, 1) for advantages.
    """
    ratio = torch.exp(log_probs - old_log_probs)
    clipped = -advantages * ratio.clamp(0.0, 2.0) > -advantages * ratio  # by PPO's clip at 1
    tokens = mask.sum()
    c = (advantages - (advantages * mask).sum() / tokens) * (log_probs - (log_probs * mask).sum() / tokens)
    candidates = ((c > CLIP_COV["low"]) & (c < CLIP_COV["high"]) & (mask > 0) & ~clipped).nonzero()
    dropped = candidates[torch.randperm(len(candidates))[: max(int(CLIP_COV["ratio"] * tokens), 1)]]
    kept = torch.ones_like(log_probs)
    kept[dropped[:, 0], dropped[:, 1]] = 0.0
    return kept


def rounded(model: torch.nn.Module, bits: int) -> dict[str, Tensor]:
    """The parameters. With few ``bits``, the weights of all linear layers but the last are rounded, a scale a row."""
    copies = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    for name, weight in copies.items():
        if bits < 32 and weight.ndim == 2 and "embed_tokens" not in name:  # which are the last layer's weights as well
            scale = weight.abs().amax(1, keepdim=True) / (2 ** (bits - 1) - 1)
            copies[name] = (weight / scale).round() * scale
    return copies


def right_answers(model: Any, tokenizer: Any, limit: int, answers: int, split: str = "test") -> list[int]:
    """How many of ``answers`` to each of 256 problems are right."""
    problems, right = task.split_problems()[split][: task.HELD_OUT], [0] * task.HELD_OUT
    model.eval()
    for first in range(0, len(problems), AT_ONCE):
        asked = [task.messages(problem) for problem in problems[first : first + AT_ONCE]]  # of as many tokens each
        prompts = tokenizer.apply_chat_template(asked, add_generation_prompt=True, return_tensors="pt")["input_ids"]
        for place, text, copies in sampled(model, tokenizer, prompts, answers, limit):
            right[first + place] += copies * int(grade(text, math.prod(problems[first + place]))[0])
    model.train()
    return right


def accuracy(model: Any, tokenizer: Any, limit: int, answers: int, split: str = "test") -> float:
    return sum(right_answers(model, tokenizer, limit, answers, split)) / task.HELD_OUT / answers


class BoundaryTrainer(CWGRPOTrainer):
    """CWGRPOTrainer under the settings of a Run; ``rows``, a dict for each step, are those of metrics.parquet."""

    def __init__(self, run: Run, **kwargs: Any) -> None:
        self.run_, self.rows, self._rng = run, [{"step": 0}], random.Random(run.seed)
        super().__init__(reward_funcs=self.reward, **kwargs)
        self.remove_callback(PrinterCallback)

    def reward(self, completions: list[Any], product: list[int], **_: Any) -> list[float]:
        """With some right answers counted as wrong, and the reverse; the true mean is kept."""
        graded = [grade(response_text(text), truth) for text, truth in zip(completions, product, strict=True)]
        self.rows.append({"step": len(self.rows), "reward": sum(map(sum, graded)) / len(graded)})
        return [(1 - right if self._rng.random() < self.run_.wrong / 100 else right) + tags for right, tags in graded]

    def validate(self) -> None:
        row, run = self.rows[-1], self.run_
        if row["step"] in run.validations:
            how = self.args.max_completion_length, run.answers, run.held_out
            row["right"] = right_answers(self.model, self.processing_class, *how)
            row["accuracy"] = sum(row["right"]) / len(row["right"]) / run.answers

    def _generate_single_turn(self, *args: Any, **kwargs: Any) -> Any:
        """With the weights of the rollout policy, after a validation if it is time for one."""
        self.validate()
        if self.rows[-1]["step"] % self.run_.stale == 0:
            self._rollout = rounded(self.model, self.run_.bits)
        trained = rounded(self.model, 32)
        self.model.load_state_dict(self._rollout, strict=False)  # the last layer's weights are the embeddings
        generated = super()._generate_single_turn(*args, **kwargs)
        self.model.load_state_dict(trained, strict=False)
        return generated

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        if self.run_.method == "clip_cov":
            ids, mask = (torch.cat([inputs[f"prompt_{of}"], inputs[f"completion_{of}"]], 1) for of in ("ids", "mask"))
            with torch.no_grad():
                width = inputs["completion_ids"].size(1)
                log_probs = self._get_per_token_logps_and_entropies(model, ids, mask, width)[0]
            old, a = inputs.get("old_per_token_logps", log_probs), inputs["advantages"][:, None]
            inputs = inputs | {"advantages": a * kept_by_clip_cov(log_probs, old, a, inputs["completion_mask"])}
        return super()._compute_loss(model, inputs)


def weights(run: Run) -> str:
    if isinstance(run, LeagueRun):
        return run.weighting
    if run.method in OF_TRL:
        return "none"
    return "gaussian" if run.method == "cw_grpo" else f"variants:{run.method}"


def train(run: Run) -> list[dict[str, Any]]:
    """Train, and return what metrics.parquet has of the run: a dict for each step, from step 0, a validation alone."""
    began = time.process_time()
    torch.set_num_threads(1)
    torch.manual_seed(run.seed)
    problems = task.split_problems()["train"]
    dataset = [{"prompt": task.messages(problem), "product": math.prod(problem)} for problem in problems]
    halves = 1 if run.updates == 1 else 2
    with tempfile.TemporaryDirectory() as out:
        config = CWGRPOConfig(
            output_dir=out,
            model_init_kwargs={"dtype": "float32"},
            seed=run.seed,
            max_steps=run.steps * run.updates,
            per_device_train_batch_size=PROMPTS * RESPONSES // halves,
            steps_per_generation=halves,
            num_iterations=max(run.updates // 2, 1),
            num_generations=RESPONSES,
            max_completion_length=task.MAX_NEW_TOKENS + run.fillers,
            temperature=run.temperature,
            loss_type="bnpo",  # mean over all tokens of an update
            learning_rate=float(run.lr),
            lr_scheduler_type="constant",
            weight_decay=0.01,
            max_grad_norm=run.limit,
            cw_weights=weights(run),
            cw_record_every=0,
            logging_steps=run.updates,
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            **OF_TRL.get(run.method, {}),
        )
        trainer = BoundaryTrainer(
            run, model=str(HERE.parent / run.model), args=config, train_dataset=Dataset.from_list(dataset)
        )
        trainer.train()
        trainer.validate()
    logs = [entry for entry in trainer.state.log_history if "grad_norm" in entry]
    for row, log in zip(trainer.rows[1:], logs, strict=True):
        row.update({name: log[name] for name in ("entropy", "grad_norm")})
        row.update({name: log[f"cw_grpo/{name}"] for name in OURS})
    trainer.rows[-1]["seconds"] = time.process_time() - began
    return trainer.rows


def processes() -> ProcessPoolExecutor:
    """JOBS processes. Each imports torch and TRL once for all its runs."""
    return ProcessPoolExecutor(JOBS, multiprocessing.get_context("spawn"), end_with_the_study)


def train_missing(pool: ProcessPoolExecutor, runs: list[Run], file: Path) -> None:
    """Do those of ``runs`` that ``file`` lacks, and add each to it as it ends."""
    done = finished(file)
    waiting = [run for run in runs if run not in done]
    print(f"{len(done)} runs are done, {len(waiting)} are not", flush=True)
    run_all(pool, train, waiting, functools.partial(add, file))


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] not in PLANS or "RESULTS" not in os.environ:
        sys.exit(__doc__)
    with processes() as pool:
        train_missing(pool, PLANS[sys.argv[1]], Path(os.environ["RESULTS"]).resolve() / "metrics.parquet")
