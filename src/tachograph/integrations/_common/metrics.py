"""What is meant by the metrics of a loop that anybody wrote: the names that the dashboard and the rules know."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

__all__ = ["Sorted", "sort_metrics"]

_KNOWN = {
    "train_loss": ("loss", "train/loss", "training_loss"),
    "lr": ("learning_rate", "train/learning_rate", "train/lr"),
    "grad_norm": ("train/grad_norm",),
}
_VALIDATION = ("eval_", "eval/", "val_", "val/", "validation_", "validation/")
_VALIDATION_LOSSES = frozenset(f"{prefix}loss" for prefix in _VALIDATION)
_TEST = ("test_", "test/")


class Sorted(NamedTuple):
    """Metrics by what they are of; each keeps its name, and some have a second one."""

    training: dict[str, Any]
    validation: dict[str, Any]
    test: dict[str, Any]


def sort_metrics(values: Mapping[str, Any]) -> Sorted:
    """Tell metrics of training from results on held-out data, by how their names begin.

    A loss or a learning rate is also given the name that is known, unless there is one of that name or several that
    could be meant. What only says in which epoch the others are is no metric of training.
    """
    validation = {name: value for name, value in values.items() if str(name).startswith(_VALIDATION)}
    test = {name: value for name, value in values.items() if str(name).startswith(_TEST)}
    training = {name: value for name, value in values.items() if name not in validation and name not in test}
    if (validation or test) and training.keys() <= {"epoch"}:
        training = {}
    for ours, theirs in _KNOWN.items():
        _name_also(training, ours, [name for name in theirs if name in training])
    _name_also(validation, "val_loss", [name for name in validation if name in _VALIDATION_LOSSES])
    return Sorted(training, validation, test)


def _name_also(values: dict[str, Any], ours: str, found: list[str]) -> None:
    if ours not in values and len(found) == 1:
        values[ours] = values[found[0]]
