"""The shape of the model that a run trains, from its config.json; the recipes' models need no download."""

from pathlib import Path

import torch
from transformers import CONFIG_MAPPING, AutoConfig, AutoModelForCausalLM, PretrainedConfig

# From the config.json of each model on the Hugging Face hub. Untied embeddings agree with the hub's sizes of 1.78 and
# 7.62 billion parameters.
_QWEN2 = {"model_type": "qwen2", "num_hidden_layers": 28, "tie_word_embeddings": False, "dtype": "bfloat16"}
KNOWN = {
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B": _QWEN2
    | {"hidden_size": 1536, "intermediate_size": 8960, "num_attention_heads": 12, "num_key_value_heads": 2}
    | {"vocab_size": 151936, "max_position_embeddings": 131072},
    "Qwen/Qwen2.5-Math-7B-Instruct": _QWEN2
    | {"hidden_size": 3584, "intermediate_size": 18944, "num_attention_heads": 28, "num_key_value_heads": 4}
    | {"vocab_size": 152064, "max_position_embeddings": 4096},
}


def read_shape(path: str) -> PretrainedConfig:
    """The configuration of a model, as transformers has it: of a folder, of :data:`KNOWN`, or from the hub."""
    if path in KNOWN and not Path(path).exists():
        values = dict(KNOWN[path])
        return CONFIG_MAPPING[values.pop("model_type")](**values)
    return AutoConfig.from_pretrained(path).get_text_config()


def parameter_shapes(shape: PretrainedConfig) -> dict[str, tuple[int, ...]]:
    """Name and shape of every parameter, as transformers makes them; a tied output layer has none of its own."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(shape)
    return {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
