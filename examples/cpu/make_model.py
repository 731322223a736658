"""Make the small language model and the arithmetic problems that the CPU quickstart trains on.

    python examples/cpu/make_model.py problems DIR    # DIR/knoveleng/open-rs/{train,test}.jsonl
    python examples/cpu/make_model.py model DIR       # tokenizer and weights; a few minutes on two cores
    python examples/cpu/make_model.py check DIR       # what a saved model does on the held-out problems

The model answers in the form the paper's system prompt asks for. It is taught some wrong answers and some broken
``<think>`` tags on purpose: reinforcement learning needs rewards that differ among the responses to one problem.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import re
import statistics
import time
from pathlib import Path
from typing import NamedTuple

import torch
from tokenizers import pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, Qwen2Config, Qwen2ForCausalLM
from transformers import Qwen2Tokenizer

SYSTEM_PROMPT = r"A conversation between User and Assistant. The user asks a question, and the Assistant solves it. The assistant first thinks about the reasoning process in the mind and then provides the user with the answer, and put your final answer within \boxed{{}} . The reasoning process and answer are enclosed within <think> </think> and <answer> </answer> tags, respectively, i.e., <think> reasoning process here </think> <answer> answer here </answer>. Note that respond by English, NOT use other languages."  # noqa: E501

SEED = 0
TRAIN_PROBLEMS = 512
TEST_PROBLEMS = 96

VOCABULARY = 480
STEPS = 2000
BATCH = 32
PEAK_LR = 3e-3
WARMUP_STEPS = 100
CLEAN_STEPS = 1200

MAX_NEW_TOKENS = 64
SAMPLES_PER_PROBLEM = 8

# The shares that leave reinforcement learning something to do.
BROKEN_FORMAT = 0.1

QUESTIONS = {
    "+": (
        "What is {a} + {b}?",
        "Compute {a} + {b}.",
        "Ann has {a} apples and gets {b} more. How many now?",
    ),
    "-": (
        "What is {a} - {b}?",
        "Compute {a} - {b}.",
        "Ann has {a} apples and eats {b} of them. How many now?",
    ),
}

# Ways of writing the think section, each with the share of right answers it is taught with: longer thoughts are right
# more often, so that training has a reason to change how the model writes as well as what it answers.
THOUGHTS = {
    "+": (
        ("{a} + {b} = {n}", 0.4),
        ("I add {b} to {a} and get {n}.", 0.5),
        ("Start at {a} and go up by {b}. That makes {n}.", 0.55),
        ("{a} + {b} = {n}. Check: {n} - {b} = {a}", 0.65),
    ),
    "-": (
        ("{a} - {b} = {n}", 0.4),
        ("I take {b} from {a} and get {n}.", 0.5),
        ("Start at {a} and go down by {b}. That makes {n}.", 0.55),
        ("{a} - {b} = {n}. Check: {n} + {b} = {a}", 0.65),
    ),
}
SLIPS = (-10, -2, -1, 1, 2, 10)

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


class Sum(NamedTuple):
    """An addition or a subtraction of two numbers below 20 whose result is not negative."""

    a: int
    op: str
    b: int

    @property
    def answer(self) -> int:
        return self.a + self.b if self.op == "+" else self.a - self.b


def split_sums() -> tuple[list[Sum], list[Sum]]:
    """Every sum once, in a fixed random order: those to train on and those held out, the two disjoint."""
    sums = [Sum(a, "+", b) for a in range(20) for b in range(20)]
    sums += [Sum(a, "-", b) for a in range(20) for b in range(a + 1)]
    random.Random(SEED).shuffle(sums)
    return sums[:TRAIN_PROBLEMS], sums[TRAIN_PROBLEMS : TRAIN_PROBLEMS + TEST_PROBLEMS]


def question(problem: Sum, rng: random.Random) -> str:
    return rng.choice(QUESTIONS[problem.op]).format(a=problem.a, b=problem.b)


def response(problem: Sum, rng: random.Random, slips: bool = True) -> str:
    """One taught answer: right or a slip away from it, in one of the phrasings, the tags whole or broken."""
    thought, share_right = rng.choice(THOUGHTS[problem.op])
    n = problem.answer
    if slips and rng.random() >= share_right:
        n = rng.choice([n + slip for slip in SLIPS if n + slip >= 0])
    thought = thought.format(a=problem.a, b=problem.b, n=n)
    answer = f"<answer>\\boxed{{{n}}}</answer>"
    if rng.random() >= BROKEN_FORMAT:
        return f"<think>\n{thought}\n</think>\n{answer}"
    return rng.choice([f"<think>\n{thought}\n{answer}", f"{thought}\n{answer}"])


def held_out() -> list[tuple[str, int]]:
    """The held-out problems, as (question, answer), in the order of test.jsonl."""
    rng = random.Random(SEED + 2)
    return [(question(problem, rng), problem.answer) for problem in split_sums()[1]]


def write_problems(folder: Path) -> None:
    """Write the problems in the columns and under the name of Open-RS, as train.jsonl and test.jsonl."""
    rng = random.Random(SEED + 1)
    train = [(question(problem, rng), problem.answer) for problem in split_sums()[0]]
    target = folder / "knoveleng" / "open-rs"
    target.mkdir(parents=True, exist_ok=True)
    for split, problems in (("train", train), ("test", held_out())):
        rows = [
            {
                "problem": text,
                "solution": f"The result is $\\boxed{{{answer}}}$",
                "answer": str(answer),
                "level": "Easy",
            }
            for text, answer in problems
        ]
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (target / f"{split}.jsonl").write_text(lines, encoding="utf-8", newline="\n")
        print(f"{len(rows)} problems in {target / split}.jsonl")


def chat(text: str) -> list[dict[str, str]]:
    return [{"role": "system", "content": SYSTEM_PROMPT}, {"role": "user", "content": text}]


def make_tokenizer() -> Qwen2Tokenizer:
    """A byte-level BPE tokenizer with Qwen2's pre-tokenizer, trained on the prompt and on what is taught."""
    rng = random.Random(SEED)
    alphabet = {character: i for i, character in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    specials = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "extra_special_tokens": ["<|im_start|>"]}
    bytes_only = Qwen2Tokenizer(vocab=alphabet, merges=[], **specials)
    corpus = [
        text
        for problem in split_sums()[0]
        for text in (SYSTEM_PROMPT, "system\nuser\nassistant\n", question(problem, rng), response(problem, rng))
    ]
    tokenizer = bytes_only.train_new_from_iterator(corpus, vocab_size=VOCABULARY, show_progress=False)
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def make_model(tokenizer: Qwen2Tokenizer) -> Qwen2ForCausalLM:
    """About 0.65 million untrained parameters, in float32."""
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return Qwen2ForCausalLM(config)


def taught_batch(
    tokenizer: Qwen2Tokenizer, problems: list[Sum], rng: random.Random, slips: bool
) -> tuple[list[int], torch.Tensor, torch.Tensor]:
    """Token ids of the system turn, then ids and labels ``(BATCH, length)``, int64, of what follows it.

    Labels are -100 outside the assistant's turn. Rows are padded on the right, where causal attention cannot see it.
    """
    rows = []
    for problem in rng.choices(problems, k=BATCH):
        messages = chat(question(problem, rng))
        system = tokenizer.apply_chat_template(messages[:1])["input_ids"]
        prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True)["input_ids"][len(system) :]
        taught = tokenizer.encode(response(problem, rng, slips)) + [tokenizer.eos_token_id]
        rows.append((prompt, taught))
    length = max(len(prompt) + len(taught) for prompt, taught in rows)
    ids = torch.full((BATCH, length), tokenizer.pad_token_id)
    labels = torch.full((BATCH, length), -100)
    for row, (prompt, taught) in enumerate(rows):
        end = len(prompt) + len(taught)
        ids[row, :end] = torch.tensor(prompt + taught)
        labels[row, len(prompt) : end] = torch.tensor(taught)
    return system, ids, labels


def train(model: Qwen2ForCausalLM, tokenizer: Qwen2Tokenizer) -> None:
    """Supervised training on the sums that are not held out."""
    problems, _ = split_sums()
    rng = random.Random(SEED)
    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK_LR, betas=(0.9, 0.98), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda step: min((step + 1) / WARMUP_STEPS, 0.5 * (1 + math.cos(math.pi * step / STEPS))),
    )
    model.train()
    start = time.monotonic()
    for step in range(1, STEPS + 1):
        system, ids, labels = taught_batch(tokenizer, problems, rng, slips=step > CLEAN_STEPS)
        # All rows share the system turn, two thirds of the tokens: run it once and let every row attend to it.
        cache = model(torch.tensor([system]), use_cache=True).past_key_values
        cache.batch_repeat_interleave(BATCH)
        loss = model(ids, past_key_values=cache, labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if step % 100 == 0:
            print(f"step {step} of {STEPS}: loss {loss.item():.3f}, {time.monotonic() - start:.0f} s", flush=True)


def save(model: Qwen2ForCausalLM, tokenizer: Qwen2Tokenizer, folder: Path) -> None:
    """Save in float16, half the size of what was trained; the configuration asks loaders for float32."""
    tokenizer.save_pretrained(folder)
    model.half().save_pretrained(folder)
    model.config.dtype = "float32"
    model.config.save_pretrained(folder)
    GenerationConfig(
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
    ).save_pretrained(folder)


@torch.no_grad()
def check(folder: Path) -> None:
    """Sample the checkpoint at temperature 1 on the held-out problems and print what reinforcement learning would see."""
    start = time.monotonic()
    torch.manual_seed(SEED)
    tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    problems = held_out()
    prompts = tokenizer.apply_chat_template(
        [chat(text) for text, _ in problems],
        add_generation_prompt=True,
        padding=True,
        return_tensors="pt",
    )
    output = model.generate(
        **prompts,
        max_new_tokens=MAX_NEW_TOKENS,
        num_return_sequences=SAMPLES_PER_PROBLEM,
        output_logits=True,
        return_dict_in_generate=True,
    )
    tokens = output.sequences[:, prompts["input_ids"].shape[1] :]
    # A response ends with its eos token, which counts; everything after it is padding.
    is_eos = (tokens == tokenizer.eos_token_id).int()
    valid = is_eos.cumsum(dim=1) - is_eos == 0
    lengths = valid.sum(dim=1)
    logits = torch.stack(output.logits, dim=1)
    entropies = torch.distributions.Categorical(logits=logits).entropy()[valid]

    texts = tokenizer.batch_decode(tokens, skip_special_tokens=True)
    right, whole = [], []
    for i, text in enumerate(texts):
        boxed = re.findall(r"\\boxed\{(\d+)\}", text)
        right.append(boxed[-1:] == [str(problems[i // SAMPLES_PER_PROBLEM][1])])
        whole.append(text.startswith("<think>\n") and text.count("\n</think>\n") == 1)
    groups = [sum(right[i : i + SAMPLES_PER_PROBLEM]) for i in range(0, len(right), SAMPLES_PER_PROBLEM)]
    mixed = [0 < group < SAMPLES_PER_PROBLEM for group in groups]

    print(f"{len(problems)} held-out problems, {SAMPLES_PER_PROBLEM} samples each, temperature 1")
    print(f"  right answers                     {statistics.mean(right):.3f}")
    print(f"  matched <think> tags              {statistics.mean(whole):.3f}")
    print(f"  groups with both right and wrong  {statistics.mean(mixed):.3f}")
    print(f"  mean entropy, nats per token      {entropies.mean():.3f}")
    print(
        f"  response length, tokens           mean {lengths.float().mean():.1f}, median {lengths.median()}, "
        f"from {lengths.min()} to {lengths.max()}; {1 - is_eos.any(dim=1).float().mean():.3f} cut off at {MAX_NEW_TOKENS}"
    )
    print(f"for example: {texts[0]!r}")
    print(f"{time.monotonic() - start:.0f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["problems", "model", "check"])
    parser.add_argument("folder", type=Path, help="where to write, or for check the checkpoint to read")
    args = parser.parse_args()

    torch.set_num_threads(2)
    if args.what == "problems":
        write_problems(args.folder)
        return
    if args.what == "model":
        torch.manual_seed(SEED)
        tokenizer = make_tokenizer()
        model = make_model(tokenizer)
        train(model, tokenizer)
        save(model, tokenizer, args.folder)
    elif not (args.folder / "config.json").is_file():
        parser.error(f"{args.folder} holds no checkpoint; make one with: model {args.folder}")
    check(args.folder)


if __name__ == "__main__":
    main()
