"""Decide which quantities of two groups of runs can be compared at all.

Runs with a common `perf_tag` are meant to be equally fast, whatever else differs. Otherwise facts and config keys
decide: other devices, ranks, precision, batch or sequence length make speeds incomparable, and other data, models or
losses make losses incomparable. What may explain a difference without excluding a comparison is a warning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any, NamedTuple

import msgspec

from tachograph.catalog import describes_training, is_seed
from tachograph.comparison._evidence import RunEvidence

__all__ = ["COMPARED_FACTS", "Comparability", "ConfigChange", "check_comparable", "decides_comparability"]

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
_DATA = {"dataset", "datasets", "data", "data_path", "data_file", "train_file", "train_data", "corpus"}
_MODEL = {"hidden_size", "n_layer", "n_layers", "num_layers", "num_hidden_layers", "n_embd", "d_model", "dim"} | {
    *("n_head", "n_heads", "num_heads", "num_attention_heads", "depth", "width", "vocab_size", "model", "model_name"),
    *("base_model", "model_type", "model_name_or_path", "arch", "architecture", "intermediate_size", "d_ff"),
}
_LOSS = {"loss", "loss_fn", "loss_type", "criterion", "label_smoothing", "objective"}


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
    is_same_machine: bool
    changes: list[ConfigChange]
    """Config keys that differ and describe the training, at most twenty."""
    num_more_changes: int
    warnings: list[str]
    samples_per_step: tuple[float, float] | None
    """The batch sizes of both groups, if they are known and differ."""


def check_comparable(
    first: Sequence[RunEvidence], second: Sequence[RunEvidence], *, is_deliberate: bool = False
) -> Comparability:
    """Decide which quantities of two groups of runs can be compared.

    Args:
        first: the runs to compare with.
        second: the runs to judge.
        is_deliberate: the config differs on purpose; another precision then refuses nothing.
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
    loss_reasons = _config_names([change.name for change in changes if not _is_same_place(change)], _is_about_loss)
    warnings = _warnings(first, second)
    return Comparability(
        min(common) if common else None,
        has_other_tags,
        None if has_other_tags else refusal,
        f"different {_join(loss_reasons)}" if loss_reasons else None,
        len({_machine(run) for run in runs}) == 1 and _machine(runs[0])[0] is not None,
        changes[:_MAX_CHANGES],
        max(0, len(changes) - _MAX_CHANGES),
        warnings,
        _batch_sizes(first, second),
    )


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
    return _is_about_work(name) or bool(_PRECISION & set(name.rpartition(".")[2].lower().split("_")))


def _is_about_work(name: str) -> bool:
    """Return whether a step does more or less with another value."""
    return name.rpartition(".")[2].lower() in _BATCH | _SEQUENCE


def _is_about_loss(name: str) -> bool:
    last = name.rpartition(".")[2].lower()
    return last in _DATA | _MODEL | _LOSS or last.startswith("tokenizer")


def decides_comparability(name: str) -> bool:
    """Return whether runs with different values of a config key cannot be compared in speed or in loss."""
    return _is_about_speed(name) or _is_about_loss(name)


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
