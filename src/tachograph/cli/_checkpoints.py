"""The best checkpoint by a metric, of a run or of a run and those that it descends from."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, NamedTuple

import rich_click as click

from tachograph.cli._format import json_text, number, safe
from tachograph.reader import RunHistory, checkpoint_records, read, saved_checkpoints
from tachograph.records import finite_or_none

__all__ = ["print_best_checkpoint"]


class _RatedCheckpoint(NamedTuple):
    path: str
    global_step: int | None
    value: float
    run: str


class _ChainLink(NamedTuple):
    """A run, and the step up to which its checkpoints count."""

    history: RunHistory
    name: str
    max_step: float = float("inf")


def print_best_checkpoint(history: RunHistory, metric: str, log_dir: str, *, with_parents: bool, as_json: bool) -> None:
    """Print the checkpoint with the best value of a metric.

    Args:
        history: the run.
        metric: the name of the metric, with ``:min`` or ``:max`` if the name does not tell what is better.
        log_dir: the folder in which parents are looked for.
        with_parents: also choose among the checkpoints of runs that the run descends from, up to where it left them.
        as_json: print JSON.
    """
    from tachograph.catalog import direction_of

    name, _, wanted = metric.rpartition(":")
    name, wanted = (name, wanted) if wanted in {"min", "max"} and name else (metric, "")
    direction = {"min": -1, "max": 1}.get(wanted) or direction_of(name)
    if direction == 0:
        raise click.ClickException(f"is a low or a high {name!r} better? write {name}:min or {name}:max")
    chain = [_ChainLink(history, history.name), *(_ancestors(history, log_dir) if with_parents else ())]
    rated = [each for link in chain for each in _rate(link, name)]
    if not rated:
        has_any = any(checkpoint_records(link.history) for link in chain)
        what = f"no checkpoint with a value of {name!r}" if has_any else "no checkpoints"
        whose = f"{history.name!r} and its parents have" if with_parents else f"{history.name!r} has"
        raise click.ClickException(f"{whose} {what}")
    best = max(rated, key=lambda each: direction * each.value)
    if as_json:
        click.echo(json_text({**best._asdict(), "metric": name}))
        return
    step = f" at step {best.global_step}" if best.global_step is not None else ""
    whose = f" of {safe(best.run, 200)}" if with_parents else ""
    click.echo(f"{safe(name)} {number(best.value)}{step}{whose}, best of {len(rated)}", err=True)
    click.echo(safe(best.path, 4_096))


def _ancestors(history: RunHistory, log_dir: str) -> Iterator[_ChainLink]:
    """Yield the runs whose weights a run descends from; print which of them are missing."""
    from tachograph.catalog import Catalog, ancestors_of

    rows = Catalog(log_dir, history.folder.path.parent).rows(is_full=True)
    rows_by_id = {row.id: row for row in rows}
    own = os.path.realpath(history.folder.path)
    row = next((row for row in rows if os.path.realpath(row.folder.path) == own), None)
    max_steps: dict[str, float] = {}
    skipped_below: int | None = None
    for ancestor in ancestors_of(row, rows):
        if skipped_below is not None and ancestor.depth > skipped_below:
            continue
        skipped_below = ancestor.depth if ancestor.how == "distill" else None  # a teacher, other weights
        if skipped_below is not None:
            continue
        if not ancestor.is_here:
            click.echo(f"{safe(ancestor.run, 200)} is not in {safe(log_dir, 1_000)}: ignored", err=True)
            continue
        step = float("inf") if ancestor.global_step is None else ancestor.global_step
        max_steps[ancestor.run] = max(step, max_steps.get(ancestor.run, step))
    for run_id, max_step in max_steps.items():
        if rows_by_id[run_id] is not row:
            yield _ChainLink(read(rows_by_id[run_id].folder.path), run_id, max_step)


def _rate(link: _ChainLink, name: str) -> list[_RatedCheckpoint]:
    """Return the checkpoints with their values: their own, else the last one since the checkpoint before."""
    history = link.history
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
        if value is not None and (step is None or step <= link.max_step):
            rated.append(_RatedCheckpoint(saved.path, step, value, link.name))
    return rated
