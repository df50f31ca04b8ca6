"""Which config keys describe the training, by their names.

A comparison of configs leaves out keys that differ between any two runs and say nothing about the training: the name of
the run, folders for its output, times, ports and process ids. A group of repeats also leaves out the seed. Names and
paths of models and data do describe the training.
"""

from __future__ import annotations

import functools
import re

__all__ = ["describes_training", "is_repeat_key", "is_seed"]

_SEPARATOR = re.compile(r"[._\-/ ]+|(?<=[a-z0-9])(?=[A-Z])")
_PROCESS = {"pid", "port", "host", "hostname", "node", "nodename", "timestamp", "date", "datetime"}
_TIMES = {("start", "time"), ("end", "time"), ("created", "at"), ("started", "at")}
_RANKS = {"rank", "local", "global", "node", "process"}
_LABELS = {"name", "id", "uuid"}
_LABEL_OWNERS = {
    "run",
    "exp",
    "experiment",
    "job",
    "trial",
    "task",
    "sweep",
    "project",
    "version",
    "session",
    "process",
} | {
    *("display", "wandb", "mlflow", "slurm", "host", "user"),
}
"""Words before a word of `_LABELS` that belong to a run, rather than to a model or a data set."""
_PLACES = {"path", "paths", "dir", "dirs", "directory", "folder", "file", "files", "filename", "output", "uri", "url"}
_INPUTS = {
    "model",
    "tokenizer",
    "data",
    "dataset",
    "datasets",
    "train",
    "val",
    "valid",
    "eval",
    "test",
    "pretrained",
} | {
    *("corpus", "vocab", "adapter", "init", "resume", "teacher", "weights"),
}
_OUTPUTS = {"output", "log", "logs", "save", "cache", "results"}


@functools.lru_cache(maxsize=10_000)
def describes_training(key: str) -> bool:
    """Return whether a config key may say something about the training; False for run names, paths, times and ports."""
    words = _words(key)
    last = words[-1] if words else ""
    if last in _PROCESS or tuple(words[-2:]) in _TIMES:
        return False
    if last == "rank":  # `local_rank`, but not `lora_rank`
        return not set(words) <= _RANKS
    if last in _LABELS:
        return len(words) > 1 and words[-2] not in _LABEL_OWNERS
    if last in _PLACES:
        return bool(_INPUTS & set(words)) and not _OUTPUTS & set(words)
    return True


def is_seed(key: str) -> bool:
    """Return whether a config key is a seed: a label of a repeat rather than a quantity."""
    return "seed" in _words(key)


def is_repeat_key(key: str) -> bool:
    """Return whether a config key only distinguishes repeats of a training: seeds and devices."""
    return is_seed(key) or _words(key)[-1:] == ["device"]


def _words(key: str) -> list[str]:
    return [word.lower() for word in _SEPARATOR.split(key) if word]
