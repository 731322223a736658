"""CW-GRPO: GRPO whose token advantages are weighted by a Gaussian kernel of their covariance.

Importing this package starts nothing. The equations are in :mod:`cw_plugin.weights`. verl loads
:mod:`cw_plugin.hosts.verl.register` through an entry point, in each of its processes.
"""

__version__ = "0.2.0"
