"""Make the small language model that the CPU quickstart trains.

    python examples/cpu/make_model.py DIR    # tokenizer and weights; about seven minutes on one core

problems.py has what it is taught.
"""

import math
import random
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
import typer
from problems import SEED, question, response, split_problems
from tokenizers import pre_tokenizers
from transformers import DataCollatorForSeq2Seq, GenerationConfig, Qwen2Config, Qwen2ForCausalLM, Qwen2Tokenizer

from cw_plugin.lab.data.prompts import OPEN_RS

VOCABULARY = 480  # 256 bytes, 3 special tokens, and the pieces learned: the system prompt becomes about 105 tokens

# Training begins with chats whose answers are all right. Bare equations, which teach arithmetic at a fraction of the
# tokens, join once the model copies the numbers of the question (together from the start, it learns neither); wrong
# answers come last, when it can add.
STEPS = 1400
EQUATIONS_FROM = 350
SLIPS_FROM = 1000
CHATS = 32  # per step
EQUATIONS = 40  # per step
PEAK_LR = 3e-3
WARMUP_STEPS = 50

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def make_tokenizer() -> Qwen2Tokenizer:
    """Trained on the prompt and on what is taught."""
    rng = random.Random(SEED)
    corpus = [
        text
        for problem in split_problems()[0]
        for text in (OPEN_RS, "system\nuser\nassistant\n", question(problem, rng), response(problem, rng, slips=True))
    ]
    return train_tokenizer(corpus, VOCABULARY)


def train_tokenizer(corpus: list[str], vocabulary: int) -> Qwen2Tokenizer:
    """A byte-level BPE tokenizer with Qwen2's pre-tokenizer and the chat template."""
    alphabet = {character: i for i, character in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    specials = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "extra_special_tokens": ["<|im_start|>"]}
    bytes_only = Qwen2Tokenizer(vocab=alphabet, merges=[], **specials)
    tokenizer = bytes_only.train_new_from_iterator(corpus, vocab_size=vocabulary, show_progress=False)
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def qwen2(
    tokenizer: Qwen2Tokenizer, mlp: int, key_value_heads: int, positions: int, width: int = 128
) -> Qwen2ForCausalLM:
    """An untrained model, in float32: 3 layers, heads of 32. Always the same."""
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=width,
        intermediate_size=mlp,
        num_hidden_layers=3,
        num_attention_heads=width // 32,
        num_key_value_heads=key_value_heads,
        max_position_embeddings=positions,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    torch.manual_seed(SEED)
    model = Qwen2ForCausalLM(config)
    ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    model.generation_config = GenerationConfig(**ends, do_sample=True, temperature=1.0, top_k=0, top_p=1.0)
    return model


Row = dict[str, list[int]]


def row(tokenizer: Qwen2Tokenizer, given: list[int], text: str) -> Row:
    """Token ids that the model is given, and the text that it is taught to write after them; -100: nothing is taught"""
    taught = [*tokenizer.encode(text), tokenizer.eos_token_id]
    return {"input_ids": given + taught, "labels": [-100] * len(given) + taught}


def chat_row(tokenizer: Qwen2Tokenizer, question: str, text: str) -> Row:
    """A user's turn, without a system turn before it, and the assistant's turn to write."""
    messages = [{"role": "user", "content": question}]
    return row(tokenizer, tokenizer.apply_chat_template(messages, add_generation_prompt=True)["input_ids"], text)


def loss_of(
    model: Qwen2ForCausalLM, tokenizer: Qwen2Tokenizer, rows: list[Row], prefix: Sequence[int] = ()
) -> torch.Tensor:
    """Mean negative log-likelihood, in nats, of the tokens taught by the rows when each follows the prefix."""
    cache = None
    if prefix:  # most of the tokens, and the same for every row: run once for all of them
        cache = model(torch.tensor([prefix]), use_cache=True).past_key_values
        cache.batch_repeat_interleave(len(rows))
    batch = DataCollatorForSeq2Seq(tokenizer)(rows)  # padded on the right, which causal attention does not see
    return model(batch["input_ids"], labels=batch["labels"], past_key_values=cache).loss


def optimised(model: Qwen2ForCausalLM, steps: int, peak_lr: float, warmup_steps: int) -> Iterator[int]:
    """Every step from 1 on; the caller computes gradients, and they are applied before the next step.

    AdamW with a linear warm-up and half a cosine down to 0, gradients clipped to a norm of 1.
    """
    # A second thread gains little on such a small model, and loses much on a busy machine. Also, the number of threads
    # changes the order of sums, and so the weights.
    torch.set_num_threads(1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=peak_lr, betas=(0.9, 0.98), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / warmup_steps, 0.5 * (1 + math.cos(math.pi * step / steps)))
    )
    model.train()
    for step in range(1, steps + 1):
        yield step
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()


def write_model(folder: Path) -> None:
    """Teach a model of about 0.65 million parameters the problems that are not held out, and save it."""
    tokenizer = make_tokenizer()
    model = qwen2(tokenizer, mlp=384, key_value_heads=2, positions=2048)
    problems, _ = split_problems()
    prefix = tokenizer.apply_chat_template([{"role": "system", "content": OPEN_RS}])["input_ids"]
    rng, start = random.Random(SEED), time.monotonic()
    for step in optimised(model, STEPS, PEAK_LR, WARMUP_STEPS):
        chosen, slips = rng.choices(problems, k=CHATS), step > SLIPS_FROM
        chats = [chat_row(tokenizer, question(p, rng), response(p, rng, slips)) for p in chosen]
        chosen = rng.choices(problems, k=EQUATIONS)  # always right
        equations = [row(tokenizer, tokenizer.encode(f"{p.a} {p.op} {p.b} ="), f" {p.answer}") for p in chosen]
        loss = loss_of(model, tokenizer, chats, prefix)
        if step > EQUATIONS_FROM:
            loss += loss_of(model, tokenizer, equations, prefix)
        loss.backward()
        if step % 50 == 0:
            print(f"step {step} of {STEPS}: loss {loss.item():.3f}; {time.monotonic() - start:.0f} s", flush=True)
    save(model, tokenizer, folder)


def save(model: Qwen2ForCausalLM, tokenizer: Qwen2Tokenizer, folder: Path) -> None:
    """Save in float16, half the size of what was trained; the configuration asks loaders for float32."""
    tokenizer.save_pretrained(folder)
    model.half().save_pretrained(folder)
    model.config.dtype = "float32"
    model.config.save_pretrained(folder)


if __name__ == "__main__":
    typer.run(write_model)
