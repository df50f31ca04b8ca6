"""The names of the quantities that every training has: trainers and frameworks name the same quantity differently.

`SIGNALS` is the only list of such names; rules, charts, lists of runs and the CLI recognise metrics by it. Upper case,
spaces, dashes and underscores make no difference. Names that frameworks compose are recognised by their form:

- ``lr-AdamW`` (Lightning's LearningRateMonitor) is a learning rate;
- ``train_loss_epoch``, ``val_loss_step`` and ``val_loss/dataloader_idx_1`` (Lightning's ``log`` with ``on_step`` and
  ``on_epoch``), ``epoch_loss``, ``loss_avg``, ``dev_loss`` and the like are losses: all of their words say which part
  of the data, or how values were averaged;
- ``g_loss``, ``loss_G``, ``train/discriminator_loss`` and the like are losses of a GAN: lists show that of the
  generator if there is no other loss, but no rule judges it, because it may rise while the training goes well;
- ``eval_squad_loss`` and ``eval/squad_loss`` (transformers, with a dict of evaluation sets) are validation losses;
- ``return``, ``AverageEpRet``, ``eval/episode_reward`` and the like are rewards: all of their other words say of which
  episodes, or how they were averaged.

The sources of the names are in `SIGNALS`, beside them.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable

__all__ = [
    "AVERAGING_WORDS",
    "LOSS_NAMES",
    "LOSS_SIGNALS",
    "SIGNALS",
    "VALIDATION_WORDS",
    "is_loss",
    "loss_names_in",
    "plain_name",
    "signal_of",
]

SIGNALS: dict[str, tuple[str, ...]] = {
    "loss": (
        "train_loss",  # ours; also timm (summary.csv) and fairseq (JSON)
        "loss",  # Keras, mmengine, fairseq (inner steps), transformers and TRL
        "train/loss",  # transformers in W&B and TensorBoard, Stable-Baselines3, mmcv
        "training_loss",
        "train/train_loss",
        "train_loss_step",  # Lightning
        "train/loss_step",
        "loss/train",
        "loss/train/total",  # Composer
        "lm_loss",  # Megatron-LM: "lm loss"
        "lm-loss-training/lm loss",  # Megatron-DeepSpeed
        "train/samples/train_loss",  # DeepSpeed: Train/Samples/train_loss
        "loss_metrics/global_avg_loss",  # torchtitan
        "reduced_train_loss",  # NeMo
        "train/CE loss",  # OLMo-core
        "train/CrossEntropyLoss",  # OLMo
        "train_inner/loss",  # fairseq in TensorBoard
        "epoch_loss",  # Keras in TensorBoard
        "batch_loss",
        "loss/mean",
        "total_loss",
        "train/total_loss",
        "loss/actor",
        "loss/0",
    ),
    "adversarial_loss": ("g_loss", "loss_G", "generator_loss", "d_loss", "loss_D", "discriminator_loss"),
    "grad_norm": (
        "grad_norm",
        "train/grad_norm",
        "gradient_norm",
        "gradients/norm",
        "train/gradient_norm",
        "gnorm",  # fairseq
        "train_inner/gnorm",
        "train_gnorm",
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
        "train_inner/lr",  # fairseq
        "train_lr",
        "base_lr",  # mmengine
        "epoch_learning_rate",  # Keras in TensorBoard
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
        "valid/loss",  # fairseq in TensorBoard; valid_loss in its JSON
        "lm loss validation",
        "lm-loss-validation/lm loss validation",
        "metrics/eval/LanguageCrossEntropy",
    ),
    "val_accuracy": (
        "val_accuracy",  # Keras
        "eval_accuracy",  # transformers
        "validation_accuracy",
        "val/accuracy",
        "eval/accuracy",
        "validation/accuracy",
        "valid_accuracy",
        "valid/accuracy",  # fairseq in TensorBoard
        "val_acc",  # Lightning
        "val/acc",
        "eval_acc",
        "eval/acc",
        "valid_acc",
        "accuracy/val",
        "acc/val",
        "eval_top1",  # timm (summary.csv)
        "accuracy/top1",  # mmengine
        "metrics/eval/MulticlassAccuracy",  # Composer
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
        "elapsed_time_per_iteration_ms",  # Megatron-LM
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
        "time/fps",  # Stable-Baselines3
        "train_inner/wps",  # fairseq: words per second
        "train_wps",
        "wps",
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
        "actor/entropy_loss",  # verl; it is the entropy itself
        "entropy/mean",
        "train/entropy_loss",  # Stable-Baselines3: the entropy with a minus sign
        "losses/entropy",  # CleanRL
    ),
    "kl": (
        "kl",
        "train/kl",
        "objective/kl",
        "policy/approxkl_avg",
        "actor/kl_loss",
        "actor/reward_kl_penalty",
        "actor/ppo_kl",
        "train/approx_kl",  # Stable-Baselines3
        "losses/approx_kl",  # CleanRL
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
        "charts/episodic_return",  # CleanRL
        "episodic_return",
        "charts/episode_return",
        "episode_return",
        "episode_reward",
        "ep_rew_mean",  # Stable-Baselines3, as it prints it
        "ep_reward",
        "mean_reward",
        "avg_reward",
        "average_reward",
        "mean_return",
        "avg_return",
        "average_return",
        "episode_reward_mean",  # RLlib
        "env_runners/episode_return_mean",
        "eval/mean_reward",  # Stable-Baselines3, without a rollout log
        "eval_reward",
    ),
    "value_loss": (
        "train/value_loss",  # Stable-Baselines3
        "train/critic_loss",
        "loss/value_avg",  # TRL
        "critic/vf_loss",  # verl
        "losses/value_loss",  # CleanRL
        "value_loss",
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

Among them are the names of transformers, TRL, Lightning, Keras, timm, fairseq, mmengine, DeepSpeed, Megatron-LM, NeMo,
OLMo-core, torchtitan, torchtune, Composer, verl, Stable-Baselines3 and CleanRL.
"""

LOSS_NAMES = SIGNALS["loss"]
"""Names of the training loss; if a run has several of them, the first one counts."""

LOSS_SIGNALS = ("loss", "adversarial_loss")

_LR_PREFIXES = ("lr_", "lr/", "optim/lr_")
_SEPARATORS = re.compile(r"[^a-z0-9/]+")
_CAPITAL = re.compile(r"(?<=[a-z0-9])(?=[A-Z][a-z])|(?<=[A-Z])(?=[A-Z][a-z])")
"""Where a word begins in ``valLoss`` and ``MSELoss``."""


def plain_name(name: str) -> str:
    """Return the name of a metric without differences that do not matter: upper case, spaces, dashes and dots."""
    return _SEPARATORS.sub("_", _CAPITAL.sub("_", name).lower())


_DATALOADER = re.compile(r"/dataloader_idx_\d+$")
_EVALUATION_SET = re.compile(r"eval[/_](.+)_loss$")
_SHORT_LOSS = re.compile(r"\bloss([gd])\b|\b([gd])loss\b|\berr([gd])\b")
_TRAINING_WORDS = {"train", "training", "trn", "tr"}
VALIDATION_WORDS = {"val", "valid", "validation", "eval", "evaluation", "dev"}
_GENERATOR_WORDS = {"g", "gen", "generator", "netg", "gan", "adv", "adversarial"}
_DISCRIMINATOR_WORDS = {"d", "dis", "disc", "discriminator", "netd"}
_REWARD_WORDS = {"reward", "rewards", "rew", "return", "returns", "ret"}
_EPISODE_WORDS = {"", "ep", "episode", "episodic", "rollout", "charts", "test", "raw", "undiscounted", "discounted"}
AVERAGING_WORDS = {
    "total",
    "avg",
    "average",
    "mean",
    "running",
    "smoothed",
    "global",
    "batch",
    "iter",
    "step",
    "epoch",
}

_RANKS = {plain_name(name): (signal, rank) for signal, names in SIGNALS.items() for rank, name in enumerate(names)}


@functools.lru_cache(maxsize=1024)  # names can contain numbers, so their number is unbounded
def signal_of(name: str) -> tuple[str, int] | None:
    """Return the signal of a metric and the rank of this name among the signal's names; None if it is no signal."""
    plain = plain_name(name)
    name_rank = _RANKS.get(plain)
    if name_rank is None and plain.startswith(_LR_PREFIXES):
        return "lr", len(SIGNALS["lr"])
    return name_rank or _signal_by_form(plain)


def _signal_by_form(plain: str) -> tuple[str, int] | None:
    """Return the signal of a composed name, with a rank after those of the listed names."""
    without_loader = _DATALOADER.sub("", plain)
    if without_loader != plain:
        match = _RANKS.get(without_loader) or _signal_by_form(without_loader)
        return ("val_loss", len(SIGNALS["val_loss"]) + 2) if match is not None and match[0] == "val_loss" else None
    words = re.split("[/_]", _SHORT_LOSS.sub(r"loss_\1\2\3", plain))
    if "loss" not in words:
        return ("reward", len(SIGNALS["reward"])) if _is_reward(set(words)) else None
    others = set(words) - {"loss", ""} - AVERAGING_WORDS
    is_epoch = "epoch" in words  # fewer values than those of steps
    if others and others <= VALIDATION_WORDS:
        return "val_loss", len(SIGNALS["val_loss"]) + is_epoch
    if others <= _TRAINING_WORDS:
        return "loss", len(SIGNALS["loss"]) + is_epoch
    if others - _TRAINING_WORDS - {"losses"} <= _GENERATOR_WORDS | _DISCRIMINATOR_WORDS:
        is_discriminator = bool(others & _DISCRIMINATOR_WORDS)
        return "adversarial_loss", 2 * is_discriminator + len(SIGNALS["adversarial_loss"]) + is_epoch
    return ("val_loss", len(SIGNALS["val_loss"]) + 2) if _EVALUATION_SET.match(plain) else None


def _is_reward(words: set[str]) -> bool:
    others = {word for word in words - _REWARD_WORDS if not word.isdecimal()}
    return (
        bool(words & _REWARD_WORDS) and others <= AVERAGING_WORDS | _TRAINING_WORDS | VALIDATION_WORDS | _EPISODE_WORDS
    )


def is_loss(name: object) -> bool:
    """Return whether a metric is the training loss, or one of a GAN."""
    if not isinstance(name, str):
        return False
    signal = signal_of(name)
    return signal is not None and signal[0] in LOSS_SIGNALS


def loss_names_in(names: Iterable[object]) -> list[str]:
    """Return the names of the training loss among the fields of records, the best one first."""
    ranked_names = [
        (LOSS_SIGNALS.index(signal[0]), signal[1], name)
        for name in names
        if isinstance(name, str) and (signal := signal_of(name)) is not None and signal[0] in LOSS_SIGNALS
    ]
    return [name for _, _, name in sorted(ranked_names)]
