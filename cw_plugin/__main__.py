"""``python -m cw_plugin`` is ``cw-grpo``."""

from cw_plugin.cli import app

app(prog_name="cw-grpo")
