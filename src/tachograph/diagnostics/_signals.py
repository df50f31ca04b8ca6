"""Maps metric names to signals: trainers and frameworks use different names for the same quantity.

`SIGNALS` is the only list of names. Upper case, spaces, dashes and underscores make no difference, and ``lr-AdamW`` is
a learning rate. Values are converted to the unit of the signal if the name of the metric says that it has another one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from tachograph.exceptions import ConfigError, did_you_mean

__all__ = ["SIGNALS", "SignalNames", "is_reward", "resolve_signals", "scale_of"]

SIGNALS: dict[str, tuple[str, ...]] = {
    "loss": (
        "train_loss",
        "loss",
        "train/loss",
        "training_loss",
        "train/train_loss",
        "train_loss_step",
        "train/loss_step",
        "loss/train",
        "loss/train/total",
        "lm_loss",
        "lm-loss-training/lm loss",
        "train/samples/train_loss",
        "loss_metrics/global_avg_loss",
        "reduced_train_loss",
        "train/CE loss",
        "train/CrossEntropyLoss",
        "loss/mean",
        "total_loss",
        "train/total_loss",
    ),
    "grad_norm": (
        "grad_norm",
        "train/grad_norm",
        "gradient_norm",
        "gradients/norm",
        "train/gradient_norm",
        "gnorm",
        "optim/total grad norm",
        "optim/grad_norm",
        "actor/grad_norm",
        "l2_norm/grad/global",
        "total_grad_norm",
        "train/total_grad_norm",
        "global_grad_norm",
        "grad_2.0_norm_total",
    ),
    "lr": (
        "lr",
        "learning_rate",
        "train/learning_rate",
        "train/lr",
        "optimizer/lr",
        "optim/lr",
        "actor/lr",
        "optim/learning_rate_group0",
        "train/samples/lr",
    ),
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
        "lm loss validation",
        "lm-loss-validation/lm loss validation",
        "metrics/eval/LanguageCrossEntropy",
    ),
    "loss_scale": (
        "loss_scale",
        "grad_scale",
        "train/loss_scale",
        "scaler_scale",
        "amp/scale",
        "train/samples/loss_scale",
    ),
    "step_s": (
        "sec_per_step",
        "step_time_s",
        "seconds_per_step",
        "window/iteration_sec_mean",
        "train_step_timing in s",
        "iteration-time",
        "timing_s/step",
        "perf/time_per_step",
        "perf/seconds_per_step",
        "time_metrics/end_to_end(s)",
        "step_time",
        "train_step_time",
        "time/step",
        "step_time_ms",
        "iteration_time_ms",
    ),
    "throughput": (
        "samples_per_sec",
        "tokens_per_sec",
        "samples_per_second",
        "tokens_per_second",
        "train/samples_per_sec",
        "train/tokens_per_sec",
        "train/samples_per_second",
        "train/tokens_per_second",
        "train_samples_per_second",
        "train_tokens_per_second",
        "throughput/samples_per_sec",
        "throughput/tokens_per_sec",
        "throughput/batches_per_sec",
        "throughput/device/TPS",
        "throughput/device/BPS",
        "throughput/device/tokens_per_second",
        "tokens_per_second_per_gpu",
        "perf/tokens_per_second_per_gpu",
        "perf/throughput",
        "throughput(tps)",
        "throughput",
        "steps_per_sec",
        "steps_per_second",
        "TFLOPS_per_GPU",
        "tflops_per_sec_per_gpu",
        "tflops",
    ),
    "data_share": (
        "window/share_data",
        "data_wait_share",
        "throughput/device/data loading (%)",
        "time_metrics/data_loading(%)",
        "perf/data_loading_pct",
    ),
    "batch_size": (
        "batch_size",
        "global_batch_size",
        "train/global_batch_size",
        "num_tokens_per_step",
        "tokens_per_step",
        "perf/total_num_tokens",
    ),
    "sequence_length": ("sequence_length", "seq_length", "seq_len", "train/seq_len", "curriculum_seqlen"),
    "gpu_memory": (
        "mem-allocated-bytes",
        "mem-max-allocated-bytes",
        "memory/max_active(GiB)",
        "memory/current_allocated_mem",
        "memory/peak_allocated_mem",
        "perf/max_memory_allocated_gb",
        "system/GPU active mem (GiB)",
        "gpu_memory/GPU active mem (GiB)",
        "peak_memory_active",
    ),
    "entropy": (
        "entropy",
        "train/entropy",
        "policy/entropy",
        "policy/entropy_avg",
        "objective/entropy",
        "actor/entropy",
        "actor/entropy_loss",
        "entropy/mean",
    ),
    "kl": (
        "kl",
        "train/kl",
        "objective/kl",
        "policy/approxkl_avg",
        "actor/kl_loss",
        "actor/reward_kl_penalty",
        "actor/ppo_kl",
    ),
    "reward": (
        "reward",
        "train/reward",
        "rewards/mean",
        "reward/mean",
        "objective/scores",
        "rollout/ep_rew_mean",
        "critic/rewards/mean",
        "critic/score/mean",
        "charts/episodic_return",
    ),
    "reward_std": ("reward_std", "train/reward_std"),
    "zero_variance_share": ("frac_reward_zero_std", "train/frac_reward_zero_std", "zero_std_ratio"),
    "truncated_share": (
        "completions/clipped_ratio",
        "train/completions/clipped_ratio",
        "clipped_ratio",
        "response_length/clip_ratio",
    ),
}
"""The metric names of each signal. If a record has several of them, the first in this list is used.

Among them are the names of transformers, TRL, DeepSpeed, Megatron-LM, NeMo, OLMo-core, torchtitan, torchtune, Composer
and verl.
"""

_LR_PREFIXES = ("lr_", "optim/lr_")
_MILLISECONDS = re.compile(r"_(ms|msec|milliseconds)_?$")
_PERCENT = re.compile(r"%|(^|[^a-z])(pct|percent)([^a-z]|$)")
_SEPARATORS = re.compile(r"[^a-z0-9/]+")
_REWARD = re.compile(r"(^|[/_])(reward|rewards|rew|return|returns|score|scores)([/_]|$)")
_PREFERENCE = re.compile(r"chosen|rejected|margin|accurac")


def _plain(name: str) -> str:
    return _SEPARATORS.sub("_", name.lower())


class SignalNames:
    """The metric names of every signal: those that were added, before those of `SIGNALS`."""

    def __init__(self, added: Mapping[str, tuple[str, ...]] | None = None) -> None:
        """Index the names.

        Args:
            added: more names, by signal. A name that `SIGNALS` gives to another signal is taken from it.
        """
        self._found: dict[str, tuple[str, int]] = {}
        for names_of in (SIGNALS, added or {}):
            for signal, names in names_of.items():
                first = -len(names) if names_of is not SIGNALS else 0
                self._found |= {_plain(name): (signal, first + rank) for rank, name in enumerate(names)}

    def find(self, name: str) -> tuple[str, int] | None:
        """Return the signal of a metric and the rank of this name among the signal's names; None if it is no signal."""
        plain = _plain(name)
        found = self._found.get(plain)
        return ("lr", len(SIGNALS["lr"])) if found is None and plain.startswith(_LR_PREFIXES) else found


def resolve_signals(given: Mapping[str, Any] | None) -> SignalNames:
    """Return the names of all signals.

    Args:
        given: more metric names by signal, such as ``{"loss": "my/objective", "step_s": ["t_step", "t_iter"]}``.

    Raises:
        ConfigError: if a signal does not exist, or its names are not texts.
    """
    if given is not None and not isinstance(given, Mapping):
        raise ConfigError(f"signals={given!r}: expected a dict, such as signals={{'loss': 'my/objective'}}")
    added: dict[str, tuple[str, ...]] = {}
    owners: dict[str, str] = {}
    for signal, names in (given or {}).items():
        if signal not in SIGNALS:
            raise ConfigError(f"unknown signal signals.{signal}{did_you_mean(str(signal), SIGNALS)}")
        listed = [names] if isinstance(names, str) else names
        if not isinstance(listed, (list, tuple)) or not all(isinstance(name, str) and name for name in listed):
            raise ConfigError(f"signals.{signal}={names!r}: expected the name of a metric, or a list of names")
        for name in listed:
            if owners.setdefault(_plain(name), signal) != signal:
                raise ConfigError(f"signals.{signal}: {name!r} is the name of signals.{owners[_plain(name)]} already")
        added[signal] = tuple(listed)
    return SignalNames(added)


def scale_of(signal: str, name: str) -> float:
    """Return the factor that converts values of a metric to the unit of its signal: seconds, or a share."""
    if signal == "step_s" and _MILLISECONDS.search(_plain(name)):
        return 1e-3
    return 1e-2 if signal == "data_share" and _PERCENT.search(name.lower()) else 1.0


def is_reward(name: str) -> bool:
    """Return whether a metric is a reward of reinforcement learning, and not one of preference training."""
    plain = _plain(name)
    return _REWARD.search(plain) is not None and _PREFERENCE.search(plain) is None
