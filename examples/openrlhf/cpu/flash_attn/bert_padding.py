"""Packing, as transformers does it where flash-attn is missing."""

from einops import rearrange  # noqa: F401
from transformers.modeling_flash_attention_utils import _index_first_axis as index_first_axis  # noqa: F401
from transformers.modeling_flash_attention_utils import _pad_input as pad_input  # noqa: F401
from transformers.modeling_flash_attention_utils import _unpad_input as unpad_input  # noqa: F401
