"""The metrics that a Lightning trainer logs: which are new, and which belong to a validation or a test."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["PREFIXES", "LoggedMetrics", "logged_metrics", "prefix_metrics"]

PREFIXES = {
    "val": ("val_", "val/", "valid_", "valid/", "validation_", "validation/", "eval_", "eval/"),
    "test": ("test_", "test/"),
}
"""The prefixes that mark a metric as the result of a validation or of a test."""

_MISSING = object()


class LoggedMetrics:
    """Finds the metrics that a trainer has logged since the last look.

    Lightning keeps one dict of the latest values and replaces a value when it is logged again. So a value is new if it
    is another object than at the last look.
    """

    def __init__(self) -> None:
        self._last_values: dict[str, Any] = {}

    def read_new(self, trainer: Any) -> dict[str, Any]:
        """Return the new metrics and mark all as seen."""
        present = logged_metrics(trainer)
        new = {name: value for name, value in present.items() if self._last_values.get(name, _MISSING) is not value}
        self._last_values = dict(present)
        return new

    def skip(self, trainer: Any) -> None:
        """Mark all metrics as seen."""
        self._last_values = dict(logged_metrics(trainer))

    def read_new_named(self, trainer: Any, names: Mapping[str, Any]) -> dict[str, Any]:
        """Return the new metrics among some names, and mark those as seen."""
        present, last_values = logged_metrics(trainer), self._last_values
        new: dict[str, Any] = {}
        for name in names:
            value = present.get(name, _MISSING)
            if value is not _MISSING and last_values.get(name) is not value:
                new[name] = last_values[name] = value
        return new


def logged_metrics(trainer: Any) -> Mapping[str, Any]:
    """Return the metrics that a trainer passes to its loggers."""
    # The private dict, because the public property `logged_metrics` computes means first, which can be a collective.
    metrics = getattr(getattr(trainer, "_logger_connector", None), "_logged_metrics", None)
    if isinstance(metrics, dict):
        return metrics
    means: Mapping[str, Any] = trainer.logged_metrics
    return means


def prefix_metrics(kind: str, metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Prefix the results of a validation or a test: ``acc`` becomes ``val_acc``, ``val/acc`` stays.

    Args:
        kind: ``"val"`` or ``"test"``.
        metrics: the results. A value of the last batch is dropped if there is a mean of all batches.
    """
    prefixes = PREFIXES[kind]
    metrics = {name: value for name, value in metrics.items() if not _has_mean(name, metrics)}
    return {name if name.startswith(prefixes) else f"{kind}_{name}": value for name, value in metrics.items()}


def _has_mean(name: str, metrics: Mapping[str, Any]) -> bool:
    """Return whether a metric is a value of one batch (`_step`) that also has a mean (`_epoch`)."""
    return name.endswith("_step") and f"{name.removesuffix('_step')}_epoch" in metrics
