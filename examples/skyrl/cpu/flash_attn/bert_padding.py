"""Imported by SkyRL, and called with ``trainer.remove_microbatch_padding=true`` alone."""


def pad_input(*_, **__):
    raise NotImplementedError("trainer.remove_microbatch_padding=true needs flash-attn; set it to false")


unpad_input = pad_input
