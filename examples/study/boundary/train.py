"""One run of the boundary study: TRL's GRPOTrainer, or CWGRPOTrainer, under one of the settings of plan.py."""

from __future__ import annotations

import math
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from jaxtyping import Float, Int
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, PrinterCallback

from cw_plugin.errors import NonFiniteError
from cw_plugin.rewards.boxed import final_boxed
from cw_plugin.rewards.think import FORMAT_RULES, answer_section
from cw_plugin.rewards.trl import response_text
from cw_plugin.trl_integration import CWGRPOConfig, CWGRPOTrainer

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
import task  # noqa: E402
from plan import Run  # noqa: E402

PROMPTS, RESPONSES = 8, 8  # in a step
ANSWERS = 4  # to each held-out problem
VALIDATE_EVERY = 50  # steps
CLIP_COV = {"ratio": 0.0002, "low": 1.0, "high": 5.0}  # its authors' settings; they also set PPO's clip to 1
Rows = list[dict[str, float]]  # a dict for each step: column of metrics.parquet -> value


def grade(text: str, product: int) -> tuple[float, float]:
    """Whether a response is right, and whether its think tags are: both parts of cw_plugin.rewards.compute_score.

    All answers here are whole numbers, so that comparing digits takes the place of math-verify.
    """
    right = final_boxed(answer_section(text)) == str(product)
    return float(right), FORMAT_RULES["matched"](text, False)


def covariances(
    log_probs: Float[Tensor, "rows time"], advantages: Float[Tensor, "rows 1"], mask: Int[Tensor, "rows time"]
) -> tuple[Float[Tensor, "rows time"], Float[Tensor, "rows time"], Float[Tensor, "rows time"]]:
    """log pi less its mean, c, and c / sigma, of each prompt group (RESPONSES rows) as in cw_plugin/weights.py.

    They are 0 where the mask is 0, and the last where sigma is 0.
    """
    groups = len(log_probs) // RESPONSES
    x, a, valid = (values.reshape(groups, -1).double() for values in (log_probs, advantages.expand_as(log_probs), mask))

    def mean(values: Tensor) -> Tensor:
        return (values * valid).sum(1, keepdim=True) / valid.sum(1, keepdim=True)

    x = (x - mean(x)) * valid
    c = x * (a - mean(a))
    sigma = mean((c - mean(c)).square()).sqrt()
    z = torch.where(sigma > 1e-15, c / sigma, 0.0)
    return x.view_as(log_probs), c.view_as(log_probs), z.view_as(log_probs)


def kernel(method: str, z: Float[Tensor, "rows time"]) -> Float[Tensor, "rows time"]:
    """w = exp(-z^2 / (2 width^2)) for z = c / sigma, on one side of 0 or on both; 1 for a method without a kernel.

    Args:
        method: ``cw_grpo``; ``width_N``, with N sigmas for the paper's one; ``negative`` or ``positive``, the sign of
            the covariances that the kernel acts on.
    """
    if method in ("grpo", "clip_cov"):
        return torch.ones_like(z)
    width = float(method.removeprefix("width_")) if method.startswith("width_") else 1.0
    w = torch.exp(-(z / width).square() / 2)
    spared = {"negative": z >= 0, "positive": z <= 0}.get(method, torch.zeros_like(z, dtype=torch.bool))
    return torch.where(spared, 1.0, w)


def normalised(w: Float[Tensor, "rows time"], mask: Int[Tensor, "rows time"]) -> Float[Tensor, "rows time"]:
    """w~: w with mean 1 over the tokens of each prompt group."""
    of_group, tokens = ((values.reshape(len(w) // RESPONSES, -1)).sum(1) for values in (w * mask, mask))
    return w * (tokens / of_group).repeat_interleave(RESPONSES)[:, None] * mask


def metrics(
    log_probs: Float[Tensor, "rows time"],
    advantages: Float[Tensor, "rows 1"],
    w: Float[Tensor, "rows time"],
    mask: Int[Tensor, "rows time"],
) -> dict[str, float]:
    """What the extreme tokens hold, and what the weights change.

    Extreme are the tokens with a Gaussian kernel below one half, whether or not it is applied. The gradient is that
    with respect to the logit of the sampled token, A (1 - pi), before weights.
    """
    x, c, z = covariances(log_probs, advantages, mask)
    extreme, tokens = z.abs() > math.sqrt(2 * math.log(2)), mask.sum()
    squares = (advantages * (1 - log_probs.exp())).square() * mask
    return {
        "extreme_gradient_share": float(squares[extreme].sum() / squares.sum().clamp(min=1e-30)),
        "extreme_balance": float(c[extreme].sum() / c[extreme].abs().sum().clamp(min=1e-30)),
        "downweighted_share": float(((w < 0.5) & (mask > 0)).sum() / tokens),
        "covariance_before": float(c.sum() / tokens),
        "covariance_after": float((normalised(w, mask) * advantages * x).sum() / tokens),
    }


def kept_by_clip_cov(
    log_probs: Float[Tensor, "rows time"],
    old_log_probs: Float[Tensor, "rows time"],
    advantages: Float[Tensor, "rows 1"],
    mask: Int[Tensor, "rows time"],
) -> Float[Tensor, "rows time"]:
    """0 for the tokens whose gradient Clip-Cov drops in this update, else 1 (arXiv:2505.22617; verl's ``clip_cov``)."""
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
    linear = {
        f"{name}.weight"
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear) and name != "lm_head"
    }
    copies = {}
    for name, weight in model.named_parameters():
        copies[name] = weight.detach().clone()
        if bits < 32 and name in linear:
            scale = weight.detach().abs().amax(1, keepdim=True) / (2 ** (bits - 1) - 1)
            copies[name] = (copies[name] / scale).round() * scale
    return copies


@torch.no_grad()
def accuracy(model: Any, tokenizer: Any, max_new_tokens: int) -> float:
    """On the held-out problems, at temperature 1."""
    problems, right = task.split_problems()["test"], 0.0
    model.eval()
    for first in range(0, len(problems), 32):
        batch = problems[first : first + 32]
        prompts = task.padded_prompts(tokenizer, batch)
        output = model.generate(**prompts, max_new_tokens=max_new_tokens, num_return_sequences=ANSWERS)
        texts = tokenizer.batch_decode(output[:, prompts["input_ids"].shape[1] :], skip_special_tokens=True)
        right += sum(grade(text, math.prod(batch[i // ANSWERS]))[0] for i, text in enumerate(texts))
    model.train()
    return right / len(problems) / ANSWERS


class BoundaryTrainer(CWGRPOTrainer):
    """CWGRPOTrainer, with ``cw_kernel="none"`` for all methods but CW-GRPO itself, under the settings of a Run."""

    def __init__(self, run: Run, **kwargs: Any) -> None:
        self.run_, self.rows, self.accuracies = run, [], {}
        self._rng = random.Random(run.seed)
        super().__init__(reward_funcs=self.reward, **kwargs)
        self.remove_callback(PrinterCallback)

    def reward(self, completions: list[Any], product: list[int], **_: Any) -> list[float]:
        graded = [grade(response_text(text), truth) for text, truth in zip(completions, product, strict=True)]
        given = [(1 - right if self._rng.random() < self.run_.wrong / 100 else right) + tags for right, tags in graded]
        of_group = torch.tensor(given).view(-1, RESPONSES)
        deviation = of_group - of_group.mean(1, keepdim=True)
        self._advantages = (deviation / (of_group.std(1, keepdim=True) + 1e-4)).flatten()  # TRL's
        self._true_reward = sum(map(sum, graded)) / len(graded)
        return given

    def validate(self) -> None:
        parameters = torch.cat([weight.detach().flatten() for weight in self.model.parameters()])
        if not parameters.isfinite().all():
            raise FloatingPointError("a parameter is no longer a finite number")
        if len(self.rows) % VALIDATE_EVERY == 0 or len(self.rows) == self.run_.steps:
            new_tokens = self.args.max_completion_length
            self.accuracies[len(self.rows)] = accuracy(self.model, self.processing_class, new_tokens)

    def _generate_single_turn(self, *args: Any, **kwargs: Any) -> Any:
        """With the weights of the rollout policy, if they are not those that are trained."""
        if self.run_.stale == 1 and self.run_.bits == 32:
            return super()._generate_single_turn(*args, **kwargs)
        if len(self.rows) % self.run_.stale == 0:
            self._rollout = rounded(self.model, self.run_.bits)
        trained = {name: weight.data for name, weight in self.model.named_parameters()}
        for name, weight in self.model.named_parameters():
            weight.data = self._rollout[name]
        try:
            return super()._generate_single_turn(*args, **kwargs)
        finally:
            for name, weight in self.model.named_parameters():
                weight.data = trained[name]

    def _cw_log_probs(self, batch: dict[str, Any]) -> Tensor:
        self._log_probs = super()._cw_log_probs(batch)  # with one update per batch TRL keeps none
        return self._log_probs

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        self.validate()
        batch = super()._generate_and_score_completions(inputs)
        log_probs, mask = batch.get("old_per_token_logps"), batch["completion_mask"]
        log_probs = self._log_probs if log_probs is None else log_probs
        a = self._advantages[:, None]
        w = kernel(self.run_.method, covariances(log_probs, a, mask)[2])
        if self.run_.method not in ("grpo", "clip_cov", "cw_grpo"):  # CWGRPOTrainer has weighted those of cw_grpo
            batch["advantages"] = (normalised(w, mask) * a).float()
        self.rows.append({"reward": self._true_reward, **metrics(log_probs, a, w, mask)})
        return batch

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        if self.run_.method == "clip_cov":
            ids, mask = (torch.cat([inputs[f"prompt_{of}"], inputs[f"completion_{of}"]], 1) for of in ("ids", "mask"))
            with torch.no_grad():
                width = inputs["completion_ids"].size(1)
                log_probs = self._get_per_token_logps_and_entropies(model, ids, mask, width)[0]
            old, a = inputs.get("old_per_token_logps", log_probs), inputs["advantages"][:, None]
            inputs = inputs | {"advantages": a * kept_by_clip_cov(log_probs, old, a, inputs["completion_mask"])}
        return super()._compute_loss(model, inputs)


def train(run: Run) -> Rows:
    """Train, and return what metrics.parquet has of the run: one dict a step, from step 0, which is a validation alone.

    A run whose numbers are no longer finite ends there. Its last row has ``failed`` 1, and an accuracy of 0.
    """
    torch.set_num_threads(1)
    torch.manual_seed(run.seed)
    folder = HERE / f"model-{run.fillers}" if run.fillers else HERE.parent / "model"
    tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
    problems = task.split_problems()["train"]
    dataset = [{"prompt": task.messages(problem), "product": math.prod(problem)} for problem in problems]
    halves = 1 if run.updates == 1 else 2
    with tempfile.TemporaryDirectory() as out:
        config = CWGRPOConfig(
            output_dir=out,
            seed=run.seed,
            max_steps=run.steps * run.updates,
            per_device_train_batch_size=PROMPTS * RESPONSES // halves,
            steps_per_generation=halves,
            num_iterations=max(run.updates // 2, 1),
            num_generations=RESPONSES,
            max_completion_length=task.MAX_NEW_TOKENS + run.fillers,
            temperature=run.temperature,
            loss_type="bnpo",  # mean over all tokens of an update
            epsilon=1.0 if run.method == "clip_cov" else 0.2,
            learning_rate=float(run.lr),
            lr_scheduler_type="constant",
            weight_decay=0.01,
            max_grad_norm=run.limit,
            cw_kernel="gaussian" if run.method == "cw_grpo" else "none",
            cw_record_every=0,
            logging_steps=run.updates,
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
        )
        trainer = BoundaryTrainer(
            run,
            model=AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32),
            args=config,
            processing_class=tokenizer,
            train_dataset=Dataset.from_list(dataset),
        )
        failed = False
        try:
            trainer.train()
            trainer.validate()
        except (FloatingPointError, NonFiniteError, RuntimeError) as error:
            if type(error) is RuntimeError and "probability tensor contains" not in str(error):  # torch.multinomial's
                raise
            failed = True
            print(f"{run}: {error}", flush=True)
    logs = [entry for entry in trainer.state.log_history if "grad_norm" in entry]
    rows = [{"step": 0}, *({"step": step, **row} for step, row in enumerate(trainer.rows, 1))]
    for row, log in zip(rows[1:], logs, strict=False):  # of the step in which a run fails there is no log
        row |= {"entropy": log["entropy"], "grad_norm": log["grad_norm"]}
    for step, value in trainer.accuracies.items():
        rows[step]["accuracy"] = value
    rows[-1] |= {"failed": float(failed)} | ({"accuracy": 0.0} if failed else {})
    return rows
