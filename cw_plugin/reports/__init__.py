"""The paper's tables and figures from your runs: ``cw-grpo report`` and ``cw-grpo tokens``.

For programs of one's own: :class:`.formats.Table` holds a DataFrame, whose first column names the row. ``intervals``
compares methods over seeds and checkpoints over questions, ``figures`` draws curves, ``covariance`` has Table 1, and
``runs.read_run`` reads a run's metrics.
"""
