"""The best checkpoint by a metric, of a run, or also of its ancestors."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, NamedTuple

import rich_click as click

from tachograph.cli._format import json_text, number, safe
from tachograph.cli._terminal import echo
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
        metric: the name of the metric, with ``:min`` or ``:max`` if the name does not imply the direction.
        log_dir: the folder that contains the parents.
        with_parents: also consider the checkpoints of its ancestors, up to the step at which the run forked off.
        as_json: print JSON.
    """
    from tachograph.catalog import direction_of

    name, _, suffix = metric.rpartition(":")
    name, suffix = (name, suffix) if suffix in {"min", "max"} and name else (metric, "")
    direction = {"min": -1, "max": 1}.get(suffix) or direction_of(name)
    if direction == 0:
        raise click.ClickException(f"is a low or a high {name!r} better? write {name}:min or {name}:max")
    chain = [_ChainLink(history, history.name), *(_ancestors(history, log_dir) if with_parents else ())]
    candidates = [candidate for link in chain for candidate in _rate(link, name)]
    if not candidates:
        has_any = any(checkpoint_records(link.history) for link in chain)
        missing_text = f"no checkpoint with a value of {name!r}" if has_any else "no checkpoints"
        owner_text = f"{history.name!r} and its parents have" if with_parents else f"{history.name!r} has"
        raise click.ClickException(f"{owner_text} {missing_text}")
    best = max(candidates, key=lambda candidate: direction * candidate.value)
    if as_json:
        echo(json_text({**best._asdict(), "metric": name}))
        return
    step = f" at step {best.global_step}" if best.global_step is not None else ""
    owner_text = f" of {safe(best.run, 200)}" if with_parents else ""
    echo(f"{safe(name)} {number(best.value)}{step}{owner_text}, best of {len(candidates)}", err=True)
    echo(safe(best.path, 4_096))


def _ancestors(history: RunHistory, log_dir: str) -> Iterator[_ChainLink]:
    """Yield the runs whose weights a run descends from; print which of them are missing."""
    from tachograph.catalog import Catalog, ancestors_of

    rows = Catalog(log_dir, history.folder.path.parent).rows(is_full=True)
    rows_by_id = {row.id: row for row in rows}
    run_path = os.path.realpath(history.folder.path)
    row = next((row for row in rows if os.path.realpath(row.folder.path) == run_path), None)
    max_steps: dict[str, float] = {}
    skipped_below: int | None = None
    for ancestor in ancestors_of(row, rows):
        if skipped_below is not None and ancestor.depth > skipped_below:
            continue
        # A teacher has other weights, and an artifact may be data.
        skipped_below = ancestor.depth if ancestor.how in {"distill", "artifact"} else None
        if skipped_below is not None:
            continue
        if not ancestor.is_here:
            echo(f"{safe(ancestor.run, 200)} is not in {safe(log_dir, 1_000)}: ignored", err=True)
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
    candidates = []
    previous_step: float = float("-inf")
    records: list[dict[str, Any]] = [record for record in checkpoint_records(history) if record.get("checkpoint_path")]
    for record, checkpoint in zip(records, saved_checkpoints(history), strict=True):
        value = finite_or_none(record.get(name))
        step = checkpoint.global_step
        if step is not None:
            if value is None:
                recent = [value for point_step, value in points if previous_step < point_step <= step]
                value = finite_or_none(recent[-1]) if recent else None
            previous_step = step
        if value is not None and (step is None or step <= link.max_step):
            candidates.append(_RatedCheckpoint(checkpoint.path, step, value, link.name))
    return candidates
