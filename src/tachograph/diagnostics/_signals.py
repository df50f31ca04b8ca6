"""Maps metric names to signals: trainers and frameworks use different names for the same quantity."""

from __future__ import annotations

import re

__all__ = ["SIGNALS", "is_reward", "signal_of"]

SIGNALS: dict[str, tuple[str, ...]] = {
    "loss": (
        "train_loss",
        "loss",
        "train/loss",
        "training_loss",
        "train/train_loss",
        "train_loss_step",
        "loss/train",
        "lm_loss",
        "train/samples/train_loss",
        "loss_metrics/global_avg_loss",
    ),
    "grad_norm": ("grad_norm", "train/grad_norm", "gradient_norm", "gradients/norm", "train/gradient_norm", "gnorm"),
    "lr": ("lr", "learning_rate", "train/learning_rate", "train/lr", "optimizer/lr"),
    "val_loss": (
        "val_loss",
        "eval_loss",
        "validation_loss",
        "validation/loss",
        "eval/loss",
        "val/loss",
        "loss/val",
        "valid_loss",
        "valid/loss",
    ),
    "loss_scale": ("loss_scale", "grad_scale", "train/loss_scale", "scaler_scale", "amp/scale"),
    "step_s": ("sec_per_step", "step_time_s", "seconds_per_step", "window/iteration_sec_mean"),
    "data_share": ("window/share_data", "data_wait_share"),
    "batch_size": ("batch_size", "global_batch_size", "train/global_batch_size", "num_tokens_per_step"),
    "entropy": ("entropy", "train/entropy", "policy/entropy", "objective/entropy"),
    "kl": ("kl", "train/kl", "objective/kl", "policy/approxkl_avg"),
    "reward": (
        "reward",
        "train/reward",
        "rewards/mean",
        "objective/scores",
        "rollout/ep_rew_mean",
        "critic/rewards/mean",
        "charts/episodic_return",
    ),
    "reward_std": ("reward_std", "train/reward_std"),
    "zero_variance_share": ("frac_reward_zero_std", "train/frac_reward_zero_std"),
    "truncated_share": (
        "completions/clipped_ratio",
        "train/completions/clipped_ratio",
        "clipped_ratio",
    ),
}
"""The metric names of each signal. If a record has several of them, the first in this list is used."""

_SEPARATORS = re.compile(r"[^a-z0-9/]+")
_SIGNAL_OF = {
    _SEPARATORS.sub("_", name.lower()): (signal, rank)
    for signal, names in SIGNALS.items()
    for rank, name in enumerate(names)
}
_REWARD = re.compile(r"(^|[/_])(reward|rewards|rew|return|returns|score|scores)([/_]|$)")
_PREFERENCE = re.compile(r"chosen|rejected|margin|accurac")


def signal_of(name: str) -> tuple[str, int] | None:
    """Return the signal of a metric and the rank of this name among the signal's names; None if it is no signal.

    Upper case, spaces, dashes and underscores make no difference; ``lr-AdamW`` is a learning rate.
    """
    plain = _SEPARATORS.sub("_", name.lower())
    found = _SIGNAL_OF.get(plain)
    return ("lr", len(SIGNALS["lr"])) if found is None and plain.startswith("lr_") else found


def is_reward(name: str) -> bool:
    """Return whether a metric is a reward of reinforcement learning, and not one of preference training."""
    plain = _SEPARATORS.sub("_", name.lower())
    return _REWARD.search(plain) is not None and _PREFERENCE.search(plain) is None
