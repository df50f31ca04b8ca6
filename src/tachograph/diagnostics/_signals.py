"""Which metric is which signal: the names that trainers and frameworks use for the same thing."""

from __future__ import annotations

__all__ = ["SIGNALS", "signal_of"]

SIGNALS: dict[str, tuple[str, ...]] = {
    "loss": ("train_loss", "loss", "train/loss", "training_loss", "train/train_loss", "loss/train"),
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
    ),
    "loss_scale": ("loss_scale", "grad_scale", "train/loss_scale", "scaler_scale", "amp/scale"),
    "step_s": ("sec_per_step", "step_time_s", "seconds_per_step", "window/iteration_sec_mean"),
    "data_share": ("window/share_data", "data_wait_share"),
    "batch_size": ("batch_size", "global_batch_size", "train/global_batch_size", "num_tokens_per_step"),
    "entropy": ("entropy", "train/entropy", "policy/entropy", "objective/entropy"),
    "kl": ("kl", "train/kl", "objective/kl", "policy/approxkl_avg"),
    "reward": ("reward", "train/reward", "rewards/mean", "objective/scores"),
    "reward_std": ("reward_std", "train/reward_std"),
    "zero_variance_share": ("frac_reward_zero_std", "train/frac_reward_zero_std"),
    "truncated_share": (
        "completions/clipped_ratio",
        "train/completions/clipped_ratio",
        "clipped_ratio",
    ),
}
"""For each signal the names it goes by; where a record has several, the first counts."""

_SIGNAL_OF = {name: (signal, rank) for signal, names in SIGNALS.items() for rank, name in enumerate(names)}


def signal_of(name: str) -> tuple[str, int] | None:
    """Return the signal that a metric is, and its rank among the names of that signal; None if it is none."""
    return _SIGNAL_OF.get(name)
