"""``python -m cw_plugin`` is ``cw-grpo``."""

from cw_plugin.lab.cli import app

app(prog_name="cw-grpo")
