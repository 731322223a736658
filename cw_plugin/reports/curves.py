"""The metrics that ``cw-grpo plot`` knows by a short name: name -> (metric of verl, title, axis)."""

from __future__ import annotations

CURVES = {
    "entropy": ("actor/entropy", "Policy entropy", "nats"),
    "reward": ("critic/score/mean", "Reward", "mean of the batch"),
    "downweighted": ("cw_grpo/downweighted_share", "Tokens with weight below 0.5", "share"),
    "covariance": ("cw_grpo/covariance_before", "Cov(log π, A) before reweighting", "mean over tokens"),
    "covariance_after": ("cw_grpo/covariance_after", "Cov(log π, A) after reweighting", "mean over tokens"),
    "length": ("response_length/mean", "Response length", "tokens"),
    "grad_norm": ("actor/grad_norm", "Gradient norm", ""),
}
