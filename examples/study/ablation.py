"""Has verl train with one of variants.py in place of the paper's weights: the one that VARIANT names.

VERL_USE_EXTERNAL_MODULES=ablation makes verl import this file in every process.
"""

from __future__ import annotations

import functools
import os

from variants import VARIANTS, reweight

from cw_plugin.verl_integration import estimator

if os.environ["VARIANT"] not in VARIANTS:
    raise ValueError(f"VARIANT={os.environ['VARIANT']} is unknown; use one of {', '.join(VARIANTS)}")
vars(estimator)["reweight_responses"] = functools.partial(reweight, os.environ["VARIANT"])
