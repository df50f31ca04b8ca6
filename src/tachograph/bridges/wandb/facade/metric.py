"""`define_metric`: the x axis and the summary of metrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from tachograph.bridges.wandb.facade.errors import Error
from tachograph.bridges.wandb.facade.summary import AGGREGATES

__all__ = ["DefinedMetric", "define", "step_metric_of", "with_step_metrics"]


class DefinedMetric(NamedTuple):
    """The definition of a metric, or of all metrics with a prefix."""

    name: str
    step_metric: str | None = None
    summary: tuple[str, ...] = ()
    goal: str | None = None
    hidden: bool | None = None

    def matches(self, name: str) -> bool:
        """Return whether it applies to a metric."""
        return name.startswith(self.name[:-1]) if self.name.endswith("*") else name == self.name


def define(name: Any, step_metric: Any, summary: Any, goal: Any, hidden: Any) -> DefinedMetric:
    """Check the arguments of `define_metric`.

    Raises:
        Error: if one of them is invalid.
    """
    if not isinstance(name, str) or not name:
        raise Error(f"define_metric: expected the name of a metric, got {name!r}")
    if "*" in name[:-1]:
        raise Error(f"define_metric: {name!r} has an asterisk that is not at its end")
    if isinstance(step_metric, DefinedMetric):
        step_metric = step_metric.name
    if step_metric is not None and not isinstance(step_metric, str):
        raise Error(f"define_metric: expected the name of a metric as step_metric, got {step_metric!r}")
    if summary is not None and not isinstance(summary, str):
        raise Error(f"define_metric: expected summary as a text, got {summary!r}")
    kinds = tuple(kind.strip().lower() for kind in (summary or "").split(",") if kind.strip())
    for kind in kinds:
        if kind not in AGGREGATES:
            raise Error(f"define_metric: summary={kind!r} is not one of {', '.join(AGGREGATES)}")
    goals = {"min": "minimize", "max": "maximize", "minimize": "minimize", "maximize": "maximize", None: None}
    if goal not in goals:
        raise Error(f"define_metric: goal={goal!r} is neither minimize nor maximize")
    return DefinedMetric(name, step_metric, kinds, goals[goal], hidden)


def step_metric_of(name: str, metrics: list[DefinedMetric]) -> str | None:
    """Return the x axis of a metric: of its own definition, else of the first one that matches it."""
    matching = [metric for metric in metrics if metric.matches(name)]
    definition = next((metric for metric in matching if metric.name == name), matching[0] if matching else None)
    return definition.step_metric if definition is not None and definition.step_metric != name else None


def with_step_metrics(
    row: dict[str, Any], metrics: list[DefinedMetric], last_values: Mapping[str, Any]
) -> dict[str, Any]:
    """Return a row with the last values of the step metrics of its metrics, where it lacks them."""
    step_values: dict[str, Any] = {}
    for name in row:
        for metric in metrics:
            step_metric = metric.step_metric
            if step_metric and step_metric not in row and step_metric in last_values and metric.matches(name):
                step_values[step_metric] = last_values[step_metric]
    return {**row, **step_values} if step_values else row
