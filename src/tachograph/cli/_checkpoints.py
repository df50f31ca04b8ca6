"""The best checkpoint of a run by a metric."""

from __future__ import annotations

from typing import Any, NamedTuple

import rich_click as click

from tachograph.cli._format import json_text, number, safe
from tachograph.reader import RunHistory, checkpoint_records, saved_checkpoints
from tachograph.records import finite_or_none

__all__ = ["print_best_checkpoint"]


class _RatedCheckpoint(NamedTuple):
    path: str
    global_step: int | None
    value: float


def print_best_checkpoint(history: RunHistory, metric: str, *, as_json: bool) -> None:
    """Print the checkpoint of a run with the best value of a metric."""
    from tachograph.catalog import direction_of

    name, _, wanted = metric.rpartition(":")
    name, wanted = (name, wanted) if wanted in {"min", "max"} and name else (metric, "")
    direction = {"min": -1, "max": 1}.get(wanted) or direction_of(name)
    if direction == 0:
        raise click.ClickException(f"is a low or a high {name!r} better? write {name}:min or {name}:max")
    rated = _rate(history, name)
    if not rated:
        what = "no checkpoints" if not checkpoint_records(history) else f"no checkpoint with a value of {name!r}"
        raise click.ClickException(f"{history.name!r} has {what}")
    best = max(rated, key=lambda each: direction * each.value)
    if as_json:
        click.echo(json_text({**best._asdict(), "metric": name}))
        return
    step = f" at step {best.global_step}" if best.global_step is not None else ""
    click.echo(f"{safe(name)} {number(best.value)}{step}, best of {len(rated)}", err=True)
    click.echo(safe(best.path, 4_096))


def _rate(history: RunHistory, name: str) -> list[_RatedCheckpoint]:
    """Return the checkpoints with their values: their own, else the last one since the checkpoint before."""
    points: list[tuple[int, float]] = []
    if name in history.metrics:
        series = history.series(name, overlap="latest")
        points = [(int(step), float(value)) for step, value in zip(series.steps, series.values, strict=True)]
    rated = []
    before: float = float("-inf")
    records: list[dict[str, Any]] = [each for each in checkpoint_records(history) if each.get("checkpoint_path")]
    for record, saved in zip(records, saved_checkpoints(history), strict=True):
        value = finite_or_none(record.get(name))
        step = saved.global_step
        if step is not None:
            if value is None:
                recent = [value for at, value in points if before < at <= step]
                value = finite_or_none(recent[-1]) if recent else None
            before = step
        if value is not None:
            rated.append(_RatedCheckpoint(saved.path, step, value))
    return rated
