"""CWGRPOTrainer with a model that sees: images reach the forward pass of the weights."""

import pytest

pytest.importorskip("trl")

import torch
import torch.nn.functional as F
from datasets import Dataset
from PIL import Image
from reference import grpo_advantages, reference_advantages
from transformers import (
    AutoTokenizer,
    CLIPImageProcessor,
    CLIPVisionConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    Qwen2Config,
)
from trl_checks import unpadded
from trl_training import MODEL, prompts, reward, train

pytestmark = pytest.mark.filterwarnings("ignore")


def a_model_that_sees() -> tuple[LlavaForConditionalGeneration, LlavaProcessor]:
    """A small random LLaVA for pictures of 16 x 16 pixels, and its processor. Each picture makes four tokens."""
    tokenizer = AutoTokenizer.from_pretrained(MODEL, padding_side="left")
    tokenizer.add_special_tokens({"additional_special_tokens": ["<image>"]})
    content = "{% for part in message['content'] %}{{ part['text'] if 'text' in part else '<image>' }}{% endfor %}"
    processor = LlavaProcessor(
        image_processor=CLIPImageProcessor(size={"shortest_edge": 16}, crop_size={"height": 16, "width": 16}),
        tokenizer=tokenizer,
        patch_size=8,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=tokenizer.chat_template.replace("{{ message['content'] }}", content),
    )
    layers = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    spread = {"initializer_range": 0.3}  # so that a picture changes log-probs
    config = LlavaConfig(
        vision_config=CLIPVisionConfig(image_size=16, patch_size=8, projection_dim=32, **layers, **spread),
        text_config=Qwen2Config(vocab_size=len(tokenizer), num_key_value_heads=2, **layers, **spread),
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        **spread,
    )
    torch.manual_seed(0)
    return LlavaForConditionalGeneration(config), processor


def test_images_reach_the_forward_pass_of_the_weights(tmp_path):
    model, processor = a_model_that_sees()
    pictures = [Image.new("RGB", (16, 16), colour) for colour in ("red", "green", "blue", "white")]
    asked = Dataset.from_list([row | {"image": picture} for row, picture in zip(prompts(), pictures, strict=True)])
    given = {"model": model, "processing_class": processor, "train_dataset": asked}
    run = train(tmp_path, given=given, max_steps=1)
    (batch,) = run.at_loss
    rows = [unpadded(batch, row) for row in range(8)]
    of_prompts, completions, masks, found = zip(*rows, strict=True)
    model.load_state_dict(run.policies[0])

    def advantages(pixels: torch.Tensor) -> list[list[float]]:
        x = []
        for (prompt, completion, *_), of_row in zip(rows, pixels, strict=True):
            with torch.no_grad():
                logits = model(torch.tensor([prompt + completion]), pixel_values=of_row[None]).logits[0]
            log_softmax = F.log_softmax(logits[len(prompt) - 1 : -1].double(), -1)
            x.append(log_softmax[torch.arange(len(completion)), list(completion)].tolist())
        return reference_advantages(x, grpo_advantages(reward(completions), of_prompts, 1e-4), masks, of_prompts)[0]

    assert torch.allclose(torch.tensor(found), torch.tensor(advantages(batch["pixel_values"])), atol=3e-5)
    of_others = torch.tensor(advantages(batch["pixel_values"].flip(0)))
    assert (torch.tensor(found) - of_others).abs().max() > 0.1
