"""Recognise the metrics of hand-written loops and add the names that the dashboard and the rules use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from tachograph.records import signal_of

__all__ = ["MetricGroups", "group_metrics"]

_STANDARD_NAMES = {"loss": "train_loss", "lr": "lr", "grad_norm": "grad_norm", "val_loss": "val_loss"}
"""The names that the dashboard and the rules use, by signal."""
_VALIDATION = ("eval_", "eval/", "val_", "val/", "validation_", "validation/")
_TEST = ("test_", "test/")


class MetricGroups(NamedTuple):
    """Metrics by the data they were computed on. Each keeps its name; some get a second one."""

    training: dict[str, Any]
    validation: dict[str, Any]
    test: dict[str, Any]


def group_metrics(values: Mapping[str, Any]) -> MetricGroups:
    """Separate training metrics from results on held-out data by the prefixes of their names.

    A loss or learning rate is also stored under its standard name, unless that name is taken or several metrics
    qualify. An `epoch` that only accompanies validation or test results is not a training metric.
    """
    validation = {name: value for name, value in values.items() if str(name).startswith(_VALIDATION)}
    test = {name: value for name, value in values.items() if str(name).startswith(_TEST)}
    training = {name: value for name, value in values.items() if name not in validation and name not in test}
    if (validation or test) and training.keys() <= {"epoch"}:
        training = {}
    for signal in ("loss", "lr", "grad_norm"):
        _add_standard_name(training, signal)
    _add_standard_name(validation, "val_loss")
    return MetricGroups(training, validation, test)


def _add_standard_name(values: dict[str, Any], signal: str) -> None:
    standard = _STANDARD_NAMES[signal]
    matches = [name for name in values if (signal_of(str(name)) or ("",))[0] == signal]
    if standard not in values and len(matches) == 1:
        values[standard] = values[matches[0]]
