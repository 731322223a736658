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
    "grad_norm": "If GRPO and CW-GRPO are both here, the gap shows roughly what the weights remove of the gradient. "
    "Adam rescales gradients, so a smaller norm alone does not mean smaller updates.",
    "gradient_share": "Extreme tokens have a Gaussian kernel below 0.5. With kernel=none they keep their weight.",
    "balance": "Near 0, extreme tokens occur about as often in good as in bad responses, as noise does. Far from 0, "
    "they tell good from bad responses.",
    "covariance": "Where this is positive, theory (plain gradient ascent on a softmax policy) says that entropy falls. "
    "Only the sign means something: the size of an update under Adam is not the learning rate.",
    "covariance_after": "The same, with the weights in the advantages.",
}
