"""Decide which quantities of two groups of runs can be compared at all.

Each quantity has its own conditions. Runs with a common `perf_tag` are meant to be equally fast, whatever else differs;
otherwise other devices, ranks, models, precision, batch or sequence length make speeds incomparable. Losses of
different models on the same data are comparable, and are the usual question; only other data, another tokenizer or
another loss function give the number another meaning. Other training data leave the validation loss comparable, and the
other way round. What may explain a difference without excluding a comparison is a warning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any, NamedTuple

import msgspec

from tachograph.catalog import describes_training, is_seed
from tachograph.comparison._evidence import RunEvidence

__all__ = [
    "COMPARED_FACTS",
    "Comparability",
    "ConfigChange",
    "check_comparable",
    "decides_comparability",
    "describes_model",
]

_MAX_CHANGES = 20
_WARNED_FACTS = {
    "host": "the host",
    "torch": "the version of torch",
    "cuda": "the version of CUDA",
    "driver": "the driver",
    "python": "the version of Python",
    "git.commit": "the commit",
    "log_every": "log_every",
    "tachograph": "the version of Tachograph",
}
_PRECISION = {"dtype", "precision", "bf16", "fp16", "fp8", "amp", "tf32", "mixed", "quantization", "bits"}
_BATCH = {"batch_size", "global_batch_size", "effective_batch_size", "micro_batch_size", "train_batch_size"} | {
    *("per_device_train_batch_size", "gradient_accumulation_steps", "accumulate_grad_batches", "bs"),
}
_SEQUENCE = {
    "seq_len",
    "seq_length",
    "sequence_len",
    "sequence_length",
    "max_length",
    "max_seq_length",
    "block_size",
} | {
    *("context_length", "max_seq_len", "n_ctx"),
}
_MODEL = {"hidden_size", "n_layer", "n_layers", "num_layers", "num_hidden_layers", "n_embd", "d_model", "dim"} | {
    *("n_head", "n_heads", "num_heads", "num_attention_heads", "depth", "width", "vocab_size", "model", "model_name"),
    *("base_model", "model_type", "model_name_or_path", "arch", "architecture", "intermediate_size", "d_ff"),
}
_PRETRAINED = {"base_model", "model_name_or_path", "pretrained_model", "pretrained_model_name_or_path"}
"""Keys whose model usually brings its own tokenizer."""
_IDENTITY = {
    "name",
    "names",
    "path",
    "paths",
    "file",
    "files",
    "dir",
    "root",
    "id",
    "type",
    "fn",
    "func",
    "function",
} | {
    *("version", "config", "split", "subset", "set", "or", "class"),
}
"""Words that say which one, in a key such as `dataset_name`; `data_workers` is not about which data."""
_DATA = {"data", "dataset", "datasets", "corpus"}
_TRAINING = {"train", "training"}
_VALIDATION = {"val", "valid", "validation", "eval", "evaluation", "dev"}
_ENVIRONMENT = {"env", "environment", "game", "task", "gym"}
_TOKENIZER = {"tokenizer", "vocab", "vocabulary"}
_LOSS_WORDS = {"loss", "criterion", "objective", "reduction", "weight", "weights"}
_LOSS_KEYS = {"label_smoothing", "label_smoothing_factor"}


class ConfigChange(msgspec.Struct, frozen=True):
    """A config key that differs: its values in both groups, in order of appearance."""

    name: str
    first: list[Any]
    second: list[Any]


class Comparability(NamedTuple):
    """Which quantities of two groups of runs can be compared."""

    common_tag: str | None
    """The `perf_tag` that all runs share."""
    is_expected_to_differ: bool
    """Whether the groups have different perf tags."""
    speed_refusal: str | None
    """Why speed and memory cannot be compared."""
    loss_refusal: str | None
    """Why training losses cannot be compared."""
    val_loss_refusal: str | None
    """Why validation losses cannot be compared."""
    quality_refusal: str | None
    """Why accuracies and rewards cannot be compared: they do not depend on the loss that was trained with."""
    is_same_model: bool
    """Whether no config key of the model differs."""
    is_same_machine: bool
    changes: list[ConfigChange]
    """Config keys that differ and describe the training, at most twenty."""
    num_more_changes: int
    warnings: list[str]
    samples_per_step: tuple[float, float] | None
    """The batch sizes of both groups, if they are known and differ."""


def check_comparable(
    first: Sequence[RunEvidence],
    second: Sequence[RunEvidence],
    *,
    is_deliberate: bool = False,
    ignores_refusals: bool = False,
) -> Comparability:
    """Decide which quantities of two groups of runs can be compared.

    Args:
        first: the runs to compare with.
        second: the runs to judge.
        is_deliberate: the config differs on purpose; another precision or model then refuses nothing.
        ignores_refusals: compare everything; what would refuse is a warning then.
    """
    runs = [*first, *second]
    tags = [set(run.perf_tags) for run in runs]
    common = set.intersection(*tags)
    has_other_tags = all(tags) and not common
    changes = _changed_config(first, second)
    names = [change.name for change in changes]
    refusal = None
    if not common:
        reasons = [
            *_differing_facts(first, second, _SPEED_FACTS),
            *_config_names(names, _is_about_work if is_deliberate else _is_about_speed),
        ]
        refusal = f"different {_join(reasons)}" if reasons else None
    # A path that differs only in its folder is the same file on another machine.
    meanings = [change.name for change in changes if not _is_same_place(change)]
    if any(_is_tokenizer(name) for run in runs for name in run.config) and not any(map(_is_tokenizer, meanings)):
        meanings = [name for name in meanings if not _words(name) & _TOKENIZER]  # padded, with the same tokens
    speed_refusal = None if has_other_tags else refusal
    loss_refusal = _refusal(meanings, lambda name: _changes_loss(name, _VALIDATION))
    val_loss_refusal = _refusal(meanings, lambda name: _changes_loss(name, _TRAINING))
    quality_refusal = _refusal(meanings, lambda name: _is_about_data(name, _TRAINING) or _is_about_environment(name))
    warnings = [*_warnings(first, second), *_tokenizer_warnings(runs, changes)]
    if ignores_refusals:
        quantities_by_reason: dict[str, list[str]] = {}
        refusals = {
            "speed and memory": speed_refusal,
            "training loss": loss_refusal,
            "validation loss": val_loss_refusal,
            "accuracy or reward": quality_refusal,
        }
        for quantity, reason in refusals.items():
            if reason is not None:
                quantities_by_reason.setdefault(reason, []).append(quantity)
        warnings += [
            f"{', '.join(quantities)}: judged in spite of {reason}"
            for reason, quantities in quantities_by_reason.items()
        ]
        speed_refusal = loss_refusal = val_loss_refusal = quality_refusal = None
    return Comparability(
        min(common) if common else None,
        has_other_tags,
        speed_refusal,
        loss_refusal,
        val_loss_refusal,
        quality_refusal,
        not any(map(describes_model, names)),
        len({_machine(run) for run in runs}) == 1 and _machine(runs[0])[0] is not None,
        changes[:_MAX_CHANGES],
        max(0, len(changes) - _MAX_CHANGES),
        warnings,
        _batch_sizes(first, second),
    )


def _refusal(names: Iterable[str], is_about: Callable[[str], bool]) -> str | None:
    reasons = _config_names(names, is_about)
    return f"different {_join(reasons)}" if reasons else None


def _tokenizer_warnings(runs: Sequence[RunEvidence], changes: Sequence[ConfigChange]) -> list[str]:
    has_tokenizer = any(_is_tokenizer(name) for run in runs for name in run.config)
    models = [change.name for change in changes if change.name.rpartition(".")[2].lower() in _PRETRAINED]
    if has_tokenizer or not models:
        return []
    return [f"config.{models[0]} differs: if the tokenizers differ too, losses per token are not comparable"]


def _machine(run: RunEvidence) -> tuple[Any, ...]:
    return (run.facts.get("host"), *(run.facts.get("gpus") or ()))


def _changed_config(first: Sequence[RunEvidence], second: Sequence[RunEvidence]) -> list[ConfigChange]:
    """Return the keys whose values differ between the groups; a seed that differs within a group is a repeat."""
    names = dict.fromkeys(name for run in (*first, *second) for name in run.config)
    changes = []
    for name in names:
        if not describes_training(name) or is_seed(name):
            continue
        sides = [_distinct(run.config.get(name) for run in runs) for runs in (first, second)]
        if sorted(map(repr, sides[0])) != sorted(map(repr, sides[1])):
            changes.append(ConfigChange(name, *sides))
    return changes


def _distinct(values: Iterable[Any]) -> list[Any]:
    value_of_text: dict[str, Any] = {}
    for value in values:
        value_of_text.setdefault(repr(value), value)
    return list(value_of_text.values())


_SPEED_FACTS: Mapping[str, Callable[[RunEvidence], Any]] = {
    "device models": lambda run: tuple(sorted(set(map(str, run.facts.get("gpus") or ())))),
    "numbers of devices": lambda run: len(run.facts.get("gpus") or ()),
    "world sizes": lambda run: run.facts.get("world_size"),
    "batch sizes": lambda run: run.facts.get("effective_batch_size"),
    "sequence lengths": lambda run: run.facts.get("sequence_length"),
}

COMPARED_FACTS = frozenset(_WARNED_FACTS) | {
    *("gpus", "world_size", "effective_batch_size", "batch_size", "sequence_length", "git.dirty"),
}
"""The facts that a comparison looks at."""


def _differing_facts(
    first: Sequence[RunEvidence], second: Sequence[RunEvidence], facts: Mapping[str, Callable[[RunEvidence], Any]]
) -> list[str]:
    differing = []
    for name, read_fact in facts.items():
        sides = [_distinct(value for run in runs if (value := read_fact(run)) is not None) for runs in (first, second)]
        if sides[0] and sides[1] and len(_distinct([*sides[0], *sides[1]])) > 1:
            differing.append(f"{name} ({_values(sides[0])} and {_values(sides[1])})")
    return differing


def _values(values: Sequence[Any]) -> str:
    texts = ["/".join(map(str, value)) or "none" if isinstance(value, tuple) else str(value) for value in values]
    return ", ".join(text[:40] for text in texts[:3])


def _config_names(names: Iterable[str], is_about: Callable[[str], bool]) -> list[str]:
    return [f"config.{name}" for name in names if is_about(name)]


def _is_about_speed(name: str) -> bool:
    is_precision = bool(_PRECISION & set(name.rpartition(".")[2].lower().split("_")))
    return _is_about_work(name) or describes_model(name) or is_precision


def _is_about_work(name: str) -> bool:
    """Return whether a step does more or less with another value."""
    return name.rpartition(".")[2].lower() in _BATCH | _SEQUENCE


def describes_model(name: str) -> bool:
    """Return whether runs with different values of a config key have different models."""
    return name.rpartition(".")[2].lower() in _MODEL


def _changes_loss(name: str, other_side: Set[str]) -> bool:
    """Return whether a loss means something else with another value of a config key.

    Args:
        name: the config key.
        other_side: words for data that the loss is not computed on.
    """
    if _names_data(name):
        return _is_about_data(name, other_side)
    words = _words(name)
    is_loss = words & (_LOSS_WORDS - {"weight", "weights"}) and words <= _LOSS_WORDS | _IDENTITY
    return (
        bool(is_loss)
        or name.rpartition(".")[2].lower() in _LOSS_KEYS
        or bool(words & {"vocab", "vocabulary"})
        or (_is_tokenizer(name))
    )


def _names_data(name: str) -> bool:
    words = _words(name)
    return bool(words & (_DATA | _TRAINING | _VALIDATION)) and words <= _DATA | _TRAINING | _VALIDATION | _IDENTITY


def _is_about_data(name: str, other_side: Set[str]) -> bool:
    words = _words(name)
    return _names_data(name) and len(words - _TRAINING - _VALIDATION) > 0 and not words & other_side


def _is_about_environment(name: str) -> bool:
    """Return whether a key names the environment of an agent, such as `env_id`."""
    words = _words(name)
    return bool(words & _ENVIRONMENT) and words <= _ENVIRONMENT | _IDENTITY


def _is_tokenizer(name: str) -> bool:
    words = _words(name)
    return "tokenizer" in words and words <= _TOKENIZER | _IDENTITY | {"model", "base"}


def _words(name: str) -> set[str]:
    """Return the words of a config key, with those of its parent if the key itself only says *name* or *path*.

    A parent also tells that data are for validation, as in `eval.dataset`.
    """
    parts = name.lower().split(".")
    words: set[str] = set()
    while parts and words <= _IDENTITY:
        words |= set(filter(None, parts.pop().replace("-", "_").split("_")))
    return words | (_VALIDATION & set(parts))


def decides_comparability(name: str) -> bool:
    """Return whether runs with different values of a config key cannot be compared in speed or in loss."""
    return _is_about_speed(name) or _changes_loss(name, frozenset()) or _is_about_environment(name)


def _is_same_place(change: ConfigChange) -> bool:
    """Return whether values are paths that differ only in their folders, as on two machines."""
    ends = {_end(value) for value in (*change.first, *change.second)}
    return len(ends) == 1 and None not in ends


def _end(value: Any) -> str | None:
    if not isinstance(value, str) or not ("/" in value or "\\" in value):
        return None
    return (PureWindowsPath(value) if "\\" in value else PurePosixPath(value)).name


def _join(reasons: Sequence[str]) -> str:
    return ", ".join(reasons[:4]) + (f" and {len(reasons) - 4} more" if len(reasons) > 4 else "")


def _warnings(first: Sequence[RunEvidence], second: Sequence[RunEvidence]) -> list[str]:
    warnings = []
    for fact, title in _WARNED_FACTS.items():
        sides = [_distinct(run.facts.get(fact) for run in runs) for runs in (first, second)]
        if sorted(map(repr, sides[0])) != sorted(map(repr, sides[1])) and None not in (*sides[0], *sides[1]):
            warnings.append(f"{title} differs: {_values(sides[0])} and {_values(sides[1])}")
    dirty = [run.name for run in (*first, *second) if run.facts.get("git.dirty")]
    if dirty:
        warnings.append(f"uncommitted changes in {_join([repr(name) for name in dirty])}: see tacho diff")
    return warnings


def _batch_sizes(first: Sequence[RunEvidence], second: Sequence[RunEvidence]) -> tuple[float, float] | None:
    sizes = []
    for runs in (first, second):
        batch_sizes = {run.facts.get("effective_batch_size") or run.facts.get("batch_size") for run in runs}
        value = next(iter(batch_sizes)) if len(batch_sizes) == 1 else None
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
            return None
        sizes.append(float(value))
    return None if sizes[0] == sizes[1] else (sizes[0], sizes[1])
