"""A stand-in for flash-attn, of which SkyRL imports two functions whether it uses them or not."""
