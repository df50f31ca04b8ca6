"""Whether lower or higher values of a field are better, by the words of its name."""

from __future__ import annotations

import functools
import re

__all__ = ["direction_of"]

_LOWER_IS_BETTER = (
    "loss",
    "error",
    "perplexity",
    "ppl",
    "time",
    "sec",
    "memory",
    "mem",
    "mae",
    "mse",
    "rmse",
    "wer",
    "fid",
)
_HIGHER_IS_BETTER = (
    *("accuracy", "acc", "reward", "f1", "auc", "bleu", "rouge", "precision", "recall", "map", "iou", "psnr", "ssim"),
    *("throughput", "goodput", "score", "return", "r2"),
)
_SEPARATOR = re.compile(r"[/._\-\s]")
_VALUES = {"last", "first", "min", "max", "mean", "median", "tail", "best"}
"""The aggregates that are values of the metric itself."""


@functools.lru_cache(maxsize=10_000)
def direction_of(field: str) -> int:
    """Return -1 if lower values of a field are better, 1 if higher ones are, and 0 if its name does not tell."""
    name, _, aggregate = field.rpartition(".")
    if aggregate in {"at_min", "at_max", "at_best"} or field.startswith(("config.", "git.", "custom.")):
        return 0
    if aggregate == "nonfinite":
        return -1
    metric = (name if name and aggregate in _VALUES else field).lower()
    words = [word.partition("@")[0] for word in _SEPARATOR.split(metric)]  # loss@1000, recall@5
    if any(word in _LOWER_IS_BETTER for word in words):
        return -1
    return 1 if any(word in _HIGHER_IS_BETTER for word in words) else 0
