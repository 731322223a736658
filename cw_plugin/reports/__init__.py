"""From runs to the paper's tables and figures: what ``cw-grpo report``, ``plot`` and ``covariance`` are made of.

runs.py and evaluations.py read what a run and an evaluation leave behind, and statistics.py judges it. tables.py,
plots.py and page.py show it. paper.py holds the paper's own numbers.
"""
