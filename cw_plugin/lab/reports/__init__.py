"""The paper's tables and figures from your runs: ``cw-grpo report`` and ``cw-grpo tokens``.

Your own programs can use these parts: :class:`.table_formats.Table` holds a DataFrame whose first column names the row.
:mod:`cw_plugin.lab.intervals` compares methods over seeds and checkpoints over questions, ``figures`` draws curves,
``covariance`` has Table 1, and ``runs.read_run`` reads a run's metrics.
"""

import logging

# The first time that figures.py imports matplotlib, it would say that it builds a cache.
logging.getLogger("matplotlib.font_manager").setLevel(logging.ERROR)
