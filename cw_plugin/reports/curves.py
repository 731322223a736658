"""The metrics that ``cw-grpo plot`` knows by a short name: name -> (metric of verl, title, axis), in a page's order."""

from __future__ import annotations

CURVES = {
    "reward": ("critic/score/mean", "Reward", "mean of the batch"),
    "entropy": ("actor/entropy", "Policy entropy", "nats"),
    "grad_norm": ("actor/grad_norm", "Gradient norm", "before clipping"),
    "gradient_share": ("cw_grpo/extreme_gradient_share", "Squared gradient held by extreme tokens", "share"),
    "balance": ("cw_grpo/extreme_balance", "Balance of the extreme tokens", "Σc / Σ|c|"),
    "downweighted": ("cw_grpo/downweighted_share", "Tokens with weight below 0.5", "share"),
    "covariance": ("cw_grpo/covariance_before", "Cov(log π, A) before reweighting", "mean over tokens"),
    "covariance_after": ("cw_grpo/covariance_after", "Cov(log π, A) after reweighting", "mean over tokens"),
    "length": ("response_length/mean", "Response length", "tokens"),
}

CAPTIONS = {
    "reward": "Every batch has other problems, so that neighbouring steps differ by chance.",
    "entropy": "Near 0 the policy no longer explores. A surge means that its responses become random.",
    "grad_norm": "The gap between GRPO and CW-GRPO shows how much of the gradient the weights remove. Adam rescales "
    "gradients, so a smaller norm alone does not mean smaller updates.",
    "gradient_share": "Extreme tokens have a Gaussian kernel below 0.5. With kernel=none they keep their weight.",
    "balance": "Near 0, extreme tokens occur in good and bad responses alike (noise). Far from 0, they tell them apart "
    "(signal).",
    "covariance": "Entropy falls by about the learning rate times this.",
    "covariance_after": "The same, with the weights in the advantages.",
}
