"""The one place that touches verl: estimator, policy loss, options, and the hooks (hooks.py lists them)."""

from __future__ import annotations

NAME = "cw_grpo"  # of the advantage estimator, of the policy loss and of the options under ``algorithm``
