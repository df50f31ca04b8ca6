"""Which metric tells how good a run is, and whether its lower or higher values are better.

A metric whose name is in `SIGNALS` has the direction of its signal. For other metrics the words of the name tell:
``val_mIoU`` should rise, ``eval/wer`` should fall, and ``loss_scale`` neither.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable

from tachograph.records._signals import AVERAGING_WORDS, LOSS_SIGNALS, VALIDATION_WORDS, plain_name, signal_of

__all__ = ["metric_direction", "result_name_in", "result_names_in"]

_SIGNAL_DIRECTIONS = {
    **dict.fromkeys(("loss", "val_loss", "step_s", "data_share", "gpu_memory"), -1),
    **dict.fromkeys(("val_accuracy", "reward", "throughput"), 1),
    **dict.fromkeys(("adversarial_loss", "lr", "loss_scale", "batch_size", "sequence_length", "reward_std"), 0),
}
"""The losses of a GAN may rise while the training goes well. Other signals have the direction of their words."""

_QUALITY_DIRECTIONS = {
    **dict.fromkeys(("loss", "nll", "ce", "xent", "bpb", "bpc", "perplexity", "ppl", "wer", "cer", "error", "err"), -1),
    **dict.fromkeys(("errors", "rmse", "mse", "mae", "mape", "fid", "kid", "lpips", "epe", "brier"), -1),
    **dict.fromkeys(("accuracy", "acc", "top", "iou", "miou", "dice", "map", "ap", "f1", "fscore", "auc", "auroc"), 1),
    **dict.fromkeys(("auprc", "bleu", "rouge", "rougel", "meteor", "ndcg", "mrr", "r2", "psnr", "ssim", "score"), 1),
    **dict.fromkeys(("scores", "precision", "recall", "explained", "kappa", "mcc", "pearson", "spearman", "em"), 1),
    **dict.fromkeys(
        ("likelihood", "reward", "rewards", "rew", "return", "returns", "ret", "success", "win", "pass"), 1
    ),
}
"""The words of metrics that tell how good a model is; the first ones are the most telling."""

_COST_DIRECTIONS = {
    **dict.fromkeys(("time", "runtime", "sec", "secs", "seconds", "latency", "memory", "mem"), -1),
    **dict.fromkeys(("throughput", "goodput", "fps"), 1),
}
_DIRECTIONS = {**_COST_DIRECTIONS, **_QUALITY_DIRECTIONS}
_PER_TIME = re.compile(r"(?:^|[/_])per[/_](?:s|secs?|seconds?|min|minute|h|hour|day)(?:$|[/_])")
_NEUTRAL_WORDS = {"std", "stdev", "stddev", "var", "variance", "scale", "coef", "coefficient", "weight", "norm", "len"}
_NEUTRAL_WORDS |= {"length", "num", "count", "lr"}
_NEGATING_WORDS = {"neg", "negative"}
_ACCURACY_WORDS = {"accuracy", "acc", "top"}
_SUCCESS_WORDS = {"success", "win"}
_QUALITY_RANKS = {word: rank for rank, word in enumerate(_QUALITY_DIRECTIONS)}
_RANK = re.compile(r"(?<=[a-z])\d+$")
"""The number of ``acc1``, ``top5`` and ``map50``."""

_RESULTS = (
    *("val_loss", "val_accuracy", "val_quality", "test_loss", "test_accuracy", "test_quality"),
    *("reward", "success", *LOSS_SIGNALS),
)


@functools.lru_cache(maxsize=10_000)
def metric_direction(name: str) -> int:
    """Return -1 if lower values of a metric are better, 1 if higher ones are, and 0 if its name does not tell."""
    signal = signal_of(name)
    if signal is not None and signal[0] in _SIGNAL_DIRECTIONS:
        return _SIGNAL_DIRECTIONS[signal[0]]
    words = _words(name)
    if words & _NEUTRAL_WORDS and "explained" not in words:  # of variance
        return 0
    if _PER_TIME.search(plain_name(name)):
        return 1
    # Bad words count before good ones: `accuracy_error`, `time_to_accuracy`.
    direction = min((_DIRECTIONS[word] for word in words if word in _DIRECTIONS), default=0)
    return -direction if words & _NEGATING_WORDS else direction


def result_name_in(names: Iterable[str]) -> str | None:
    """Return the metric that tells how good a run is.

    That is the validation loss or accuracy or another measure of quality, else the one on a test set, else the reward
    or the share of successes, else the training loss.
    """
    ranked_names = [(*rank, name) for name in names if (rank := _result_rank(name)) is not None]
    return min(ranked_names)[-1] if ranked_names else None


def result_names_in(names: Iterable[str]) -> list[str]:
    """Return all metrics that tell how good a run is, in their order, without training losses."""
    return [
        name for name in names if (rank := _result_rank(name)) is not None and _RESULTS[rank[0]] not in LOSS_SIGNALS
    ]


@functools.lru_cache(maxsize=10_000)
def _result_rank(name: str) -> tuple[int, int, int] | None:
    """Return how little a metric tells, compared with others, how good a run is; None if it does not tell it."""
    signal = signal_of(name)
    if signal is not None:
        return (_RESULTS.index(signal[0]), 0, signal[1]) if signal[0] in _RESULTS else None
    if not metric_direction(name):
        return None
    words = _words(name)
    quality = min((rank for word, rank in _QUALITY_RANKS.items() if word in words), default=None)
    if quality is None or words & _COST_DIRECTIONS.keys():
        return None
    others = words - VALIDATION_WORDS - AVERAGING_WORDS - {"test", "m"}
    if words & _SUCCESS_WORDS:
        return _RESULTS.index("success"), len(others), 0
    part = "val" if words & VALIDATION_WORDS else "test" if "test" in words else ""
    if not part:
        return None
    kind = "loss" if others == {"loss"} else "accuracy" if others <= _ACCURACY_WORDS else "quality"
    return _RESULTS.index(f"{part}_{kind}"), len(others), quality


def _words(name: str) -> set[str]:
    words = re.split("[/_]", plain_name(name))
    return {word if word in _QUALITY_RANKS else _RANK.sub("", word) for word in words} - {""}
