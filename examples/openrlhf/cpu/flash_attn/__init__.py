"""A stand-in for flash-attn, of which OpenRLHF imports four names whether it uses them or not."""
