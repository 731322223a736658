"""The paper's tables and figures from your runs: ``cw-grpo report``, ``plot`` and ``covariance``.

runs.py and evaluations.py read the files of runs and evaluations; statistics.py computes intervals and tests.
tables.py, plots.py and page.py show it. paper.py holds the paper's own numbers.
"""
