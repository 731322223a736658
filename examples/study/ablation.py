"""Has verl train with the function of variants.py that VARIANT names, in place of the paper's weights.

VERL_USE_EXTERNAL_MODULES=ablation makes verl import this file in every process.
"""

import os

import variants

from cw_plugin.verl_integration import estimator

estimator.reweight = getattr(variants, os.environ["VARIANT"])
