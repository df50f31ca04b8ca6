"""Reads metrics from the lines that a script prints: `step 250: train loss 1.9012, val loss 2.0115`.

Many scripts only print their validation loss. A line is split into words, numbers and punctuation. For each number, the
words before it are its name: an optional split (train, val, test), optional qualifiers (avg, mean, …) and a known word
for a metric. A false value is worse than a missing one (`best val loss`, `loss scale`, `Namespace(loss=…)`), so:

- without `:` or `=`, the number needs a decimal point, an exponent or a percent sign, and stands next to the name;
- an unknown word in the name rejects it, unless a split says that it is a metric;
- a split also applies to later names without one: `valid loss 0.4 | acc 91.2%` has the accuracy of the validation;
- the data may come after it: `Accuracy of the network on the 10000 test images: 55 %`; any other word there rejects it;
- a line about loading or resuming states an earlier measurement;
- shares are numbers between 0 and 1: `91.2%` and `912/1000` are 0.912.
"""

from __future__ import annotations

import math
import re
from typing import NamedTuple

__all__ = ["PrintedValues", "parse_line"]

_MAX_CHARS = 600
_SPLITS = {
    "train": "train",
    "training": "train",
    "trn": "train",
    "tr": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "eval": "val",
    "evaluation": "val",
    "dev": "val",
    "heldout": "val",
    "held-out": "val",
    "test": "test",
    "testing": "test",
}
_QUALIFIERS = frozenset(
    {
        *(
            "avg",
            "average",
            "averaged",
            "mean",
            "total",
            "overall",
            "running",
            "epoch",
            "batch",
            "set",
            "step",
            "final",
        ),
        *("top1", "top5", "top-1", "top-5", "macro", "micro", "weighted", "balanced", "episode", "episodic", "ep"),
        *("cross-entropy", "ce"),
    }
)
_KEPT_QUALIFIERS = {"top1", "top5", "top-1", "top-5", "macro", "micro", "weighted", "balanced", "episode", "episodic"}
"""Those that make it another metric."""

_METRICS = {
    "loss": "loss",
    "losses": "loss",
    "nll": "nll",
    "acc": "accuracy",
    "acc1": "accuracy_top1",
    "acc5": "accuracy_top5",
    "acc@1": "accuracy_top1",
    "acc@5": "accuracy_top5",
    "accuracy": "accuracy",
    "ppl": "perplexity",
    "perplexity": "perplexity",
    "bpb": "bpb",
    "bpc": "bpc",
    "f1": "f1",
    "f1-score": "f1",
    "auc": "auc",
    "auroc": "auroc",
    "bleu": "bleu",
    "wer": "wer",
    "cer": "cer",
    "mse": "mse",
    "mae": "mae",
    "rmse": "rmse",
    "iou": "iou",
    "miou": "miou",
    "map": "map",
    "psnr": "psnr",
    "ssim": "ssim",
    "fid": "fid",
    "dice": "dice",
    "recall": "recall",
    "precision": "precision",
    "reward": "reward",
    "return": "return",
    "error": "error",
    "err": "error",
    "score": "score",
}
_SHARES = frozenset({"accuracy", "accuracy_top1", "accuracy_top5", "f1", "auc", "auroc", "iou", "miou", "map", "dice"})
_UNIT_SHARES = frozenset({"recall", "precision"})
"""Also the name of a setting: `precision: 16`."""
_ONLY_WITH_SPLIT = frozenset({"error", "score"})
_WITH_MARK = frozenset({"map", "dice", "recall", "precision", "reward", "return", "error", "score"})
_BAR = re.compile(r"\|\s*(\d+)/(\d+)\s*\[")
"""The count of a progress bar of tqdm."""

_TOKEN = re.compile(
    r"(?P<word>[A-Za-z][A-Za-z0-9@]*(?:[-_/.][A-Za-z0-9@]+)*)"
    r"|(?<![\w.])(?P<thousands>[-+]?[1-9]\d{0,2}(?:,\d{3})+)(?P<decimals>\.\d+)?(?![\w.,]*\w)"
    r"|(?P<number>(?<![\w.])[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)(?P<rest>(?:[\w.]|,(?=\d))*)"
    r"|(?P<mark>[^\s'\"])"
)
_KEYS = tuple(dict.fromkeys(key[:4] for key in _METRICS))
_BREAKS = frozenset(
    {"and", "with", "current", "now", "info", "debug", "root", "main", "epoch", "step", "iter", "batch"}
)
"""Words before a name that do not belong to it."""
_NOT_MEASURED = frozenset(
    {
        *(
            "best",
            "lowest",
            "highest",
            "min",
            "max",
            "minimum",
            "maximum",
            "target",
            "threshold",
            "baseline",
            "previous",
        ),
        *("prev", "prior", "old", "last", "expected", "expect", "improved", "improvement", "delta", "diff", "std"),
        *("difference", "change", "tolerance", "tol", "default", "random", "chance", "if", "unless", "until", "when"),
        *("num", "number", "count", "every", "interval", "freq", "frequency", "no", "without", "using", "use"),
    }
)
_NOT_A_LOG = (
    "warning",
    "traceback",
    "namespace(",
    "config(",
    "args(",
    "earlystopping",
    "early stopping",
    "://",
    "usage:",
)
_OF_EARLIER_RUN = re.compile(
    r"\b(?:resum(?:e|es|ed|ing)|restor(?:e|es|ed|ing)|continu(?:ed|ing) (?:training )?from)\b"
    r"|\b(?:re)?load(?:ed|ing)\b.*\b(?:checkpoint|ckpt|weights|model|state|from)\b"
)
"""Lines that state an earlier measurement."""
_OF_WHICH = frozenset({"of", "on", "for", "over", "in"})
"""Words between a metric and the data: `Accuracy of the network on the 10000 test images: 55 %`."""
_DATA_WORDS = frozenset(
    {
        *("the", "a", "our", "this", "trained", "final", "all", "whole", "entire", "full", "network", "net", "model"),
        *("classifier", "set", "data", "dataset", "split", "images", "image", "examples", "samples", "sentences"),
        *("inputs", "points", "batches", "sequences", "documents", "tokens"),
    }
)
_AVERAGES = frozenset({"avg", "average", "averaged", "mean", "total", "episode", "episodic", "ep"})
_STEP_WORDS = frozenset({"step", "steps", "global_step", "train_step", "iter", "iters", "iteration", "it", "update"})
_UNITS = frozenset(
    {
        *("epochs", "epoch", "steps", "step", "iters", "iterations", "times", "ms", "s", "sec", "seconds", "minutes"),
        *("hours", "gb", "mb", "x", "it/s", "batches", "weight", "weights"),
    }
)


class PrintedValues(NamedTuple):
    """The metrics of one line."""

    values: dict[str, float]
    """The numbers by name, such as `val_loss`. Names without a known split have no prefix."""
    step: int | None = None
    """The step that the line states."""
    epoch: int | None = None
    total: int | None = None
    """The number of steps, if the line states it with the step: `Step [100/600]`."""


class _Token(NamedTuple):
    kind: str
    """word, number or mark."""
    text: str
    rest: str = ""
    """Characters that follow a number without a space."""


def parse_line(line: str) -> PrintedValues | None:
    """Return the metrics that a line of output states, or None if there are none."""
    if len(line) > _MAX_CHARS:
        return None
    text = line.lower()
    if not any(key in text for key in _KEYS) or any(word in text for word in _NOT_A_LOG):
        return None
    if _OF_EARLIER_RUN.search(text):
        return None
    tokens = _split_tokens(text)
    values: dict[str, float] = {}
    split = _split_of_line(tokens)
    has_episode = any(token.text == "episode" for token in tokens)
    for index, token in enumerate(tokens):
        if token.kind != "number" or token.rest not in ("", "."):
            continue
        name = _find_name(tokens, index)
        if name is None:
            continue
        split = name.split or split
        value = _parse_number(tokens, index, name)
        is_score = name.base == "score" and (name.is_average or has_episode)
        if value is not None and (split or is_score or name.base not in _ONLY_WITH_SPLIT):
            values.setdefault(f"{split}_{name.metric}" if split else name.metric, value)
    if not values:
        return None
    step, total = _find_count(tokens, _STEP_WORDS)
    if step is None and (bar := _BAR.search(text)):
        step, total = int(bar[1]), int(bar[2])
    return PrintedValues(values, step, _find_count(tokens, frozenset({"epoch"}))[0], total)


def _split_tokens(text: str) -> list[_Token]:
    tokens = []
    for match in _TOKEN.finditer(text):
        word = match["word"]
        if match["thousands"] is not None:
            decimals = match["decimals"] or ""
            # Without decimals it may be one with a decimal comma: it only counts as a step.
            tokens.append(_Token("number", match["thousands"].replace(",", "") + decimals, "" if decimals else ","))
        elif word is not None and word not in ("nan", "inf", "infinity"):
            tokens.append(_Token("word", word))
        elif word is not None or match["number"] is not None:
            tokens.append(_Token("number", word or match["number"], match["rest"] or ""))
        else:
            tokens.append(_Token("mark", match["mark"]))
    return tokens


def _split_of_line(tokens: list[_Token]) -> str:
    """Return the split that a line begins with: `Test set: Average loss …`, `[valid] loss …`, `valid | loss …`."""
    first_word = next((token.text for token in tokens if token.kind == "word"), "")
    return _SPLITS.get(first_word, "")


class _Name(NamedTuple):
    split: str
    metric: str
    base: str
    """The metric without qualifiers."""
    has_mark: bool
    """Whether `:` or `=` separates it from the number."""
    is_average: bool = False
    """Whether a word such as `average` or `total` says that it was measured."""


def _find_name(tokens: list[_Token], index: int) -> _Name | None:
    """Return the metric that a number belongs to: the words before it."""
    end = index - 1
    has_mark = False
    while end >= 0 and tokens[end].text in ("[", "(", "tensor"):
        end -= 1
    is_tensor = end + 1 < index and tokens[end + 1].text == "tensor"
    is_separated = end >= 0 and tokens[end].text in (":", "=", "is", "was")
    if end >= 0 and tokens[end].text in (":", "=", "is", "was", "of"):
        has_mark = tokens[end].kind == "mark"
        end -= 1
    elif end < index - 1 and not is_tensor:
        return None
    if end >= 2 and has_mark and tokens[end].kind == "number" and tokens[end - 1].text in ("step", "epoch", "iter"):
        end -= 3 if tokens[end - 2].text in ("at", "@", "after") else 0  # `val loss at step 250: 2.01`
    if end < 0 or tokens[end].kind != "word":
        return None
    data_words: list[str] = []
    if is_separated and _metric_of(tokens[end].text) is None:
        end, data_words = _skip_data(tokens, end)
    last_parts = _split_words(tokens[end].text)
    base = _metric_of(tokens[end].text)
    if base is None:
        return None
    words = [] if tokens[end].text in _METRICS else last_parts[:-1]
    for position in range(end - 1, -1, -1):
        token = tokens[position]
        if token.text == "." and position and tokens[position - 1].text in _SPLITS:  # `Val. Loss`
            continue
        if token.kind != "word" or (token.text in _BREAKS and token.text not in _QUALIFIERS):
            break
        words[:0] = _split_words(token.text)
    if _SPLITS.keys().isdisjoint(words):
        words = [*words, *data_words]
    return _check_name(words, base, has_mark)


def _metric_of(word: str) -> str | None:
    return _METRICS.get(word) or _METRICS.get(_split_words(word)[-1])


def _skip_data(tokens: list[_Token], end: int) -> tuple[int, list[str]]:
    """Return the index of the metric that was measured on the data that the words before `end` name, and their split.

    The index is `end` if they name no data.
    """
    splits = []
    for position in range(end, 0, -1):
        token = tokens[position]
        if token.text in _SPLITS:
            splits.append(token.text)
        elif token.text in _OF_WHICH and _metric_of(tokens[position - 1].text) is not None:
            return position - 1, splits[:1]
        elif token.kind != "number" and token.text not in _DATA_WORDS and token.text not in _OF_WHICH:
            break
    return end, []


def _split_words(text: str) -> list[str]:
    return [text] if text in _SPLITS or text in _QUALIFIERS else re.split(r"[-_/.]", text)


def _check_name(words: list[str], base: str, has_mark: bool) -> _Name | None:
    """Return the name that consists of these words before the metric, if all of them are plausible."""
    if any(word in _NOT_MEASURED for word in words):
        return None
    splits = [word for word in words if word in _SPLITS]
    others = [word for word in words if word not in _SPLITS and word not in _QUALIFIERS]
    if others and not (splits and has_mark and len(others) <= 2):
        return None
    after_split = words[words.index(splits[-1]) + 1 :] if splits else words
    parts = [word.replace("-", "_") for word in after_split if word in _KEPT_QUALIFIERS or word not in _QUALIFIERS]
    split = _SPLITS[splits[-1]] if splits else ""
    return _Name(split, "_".join([*parts, base]), base, has_mark, not _AVERAGES.isdisjoint(words))


def _parse_number(tokens: list[_Token], index: int, name: _Name) -> float | None:
    """Return a number as the value of a metric; None if it cannot be one."""
    text = tokens[index].text
    following = [token.text for token in tokens[index + 1 : index + 3]] + ["", ""]
    if (
        following[0] in _UNITS
        or following[0] in ("*", "<", ">", "^")
        or (name.base in _WITH_MARK and not name.has_mark)
    ):
        return None
    value = float(text)
    if following[0] == "/":
        whole = float(following[1]) if following[1].isdigit() else 0.0
        return value / whole if name.base in _SHARES and 0 <= value <= whole and whole else None
    if following[0] == "%":
        return value / 100
    if text.lstrip("+-").isdigit() and not name.has_mark:
        return None
    most = 100.0 if name.base in _SHARES else 1.0 if name.base in _UNIT_SHARES else math.inf
    is_outside = math.isfinite(value) and most < math.inf and not 0 <= value <= most
    return None if is_outside else value


def _find_count(tokens: list[_Token], words: frozenset[str]) -> tuple[int | None, int | None]:
    """Return the number after one of these words, and the total after it: `Step [100/600]`."""
    for index, token in enumerate(tokens):
        if token.kind != "word" or token.text not in words:
            continue
        end = index + 1
        while end < len(tokens) and end < index + 4 and tokens[end].text in (":", "=", "#", "[", "("):
            end += 1
        if end < len(tokens) and tokens[end].text.isdigit() and tokens[end].rest in ("", ","):
            following = [token.text for token in tokens[end + 1 : end + 3]]
            has_total = len(following) == 2 and following[0] == "/" and following[1].isdigit()
            return int(tokens[end].text), int(following[1]) if has_total else None
    return None, None
