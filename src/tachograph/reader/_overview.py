"""Overviews for a list of runs, from the beginning and the end of each journal only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from tachograph.journal import (
    TAIL_BYTES,
    Heartbeat,
    JournalEnds,
    ProcessIdentity,
    RunFolder,
    RunState,
    read_ends,
    read_heartbeat,
    writer_of,
)
from tachograph.reader._alerts import AlertHistory
from tachograph.reader._labels import labels_of
from tachograph.records import clock_jump_s, is_number, loss_names_in, step_of

__all__ = ["RunOverview", "overview", "overview_with_heartbeat"]

_TAIL_BYTES_FOR_LOSS = 128 << 10
_MAX_TAIL_BYTES = 8 << 20
_LATE_KINDS = frozenset({"dump", "media", "histograms"})
"""Kinds that are written when their files are complete: their step may be an earlier one."""


class RunOverview(msgspec.Struct, kw_only=True):
    """The row of a run in a list of runs."""

    name: str
    state: RunState
    started: float | None = None
    updated: float | None = None
    duration_s: float | None = None
    """From the first to the last record, without changes of the wall clock."""
    clock_jumps_s: float = 0.0
    """By how much the wall clock was set in total while the run was recorded."""
    step: int | None = None
    last_step_at: float | None = msgspec.field(default=None, name="stepped")
    """The time of the last step record."""
    first_step: int = 0
    """The number of the first step: 0, or 1 if steps are numbered when they are completed."""
    max_steps: int | None = None
    train_loss: float | None = None
    sec_per_step: float | None = None
    recent_pace_s: float | None = None
    """Seconds per step over the latest records."""
    pace_s: float | None = None
    """Seconds per step including pauses, over the current attempt."""
    process: ProcessIdentity | None = None
    display_name: str | None = None
    """The name that the training code gave the run after its start, and its notes."""
    note: str | None = None
    tags: list[str] = []
    session_tag: str | None = None
    reason: str | None = None
    size_bytes: int = 0
    num_dropped: int = 0
    num_open_alerts: int = 0
    num_critical_alerts: int = 0
    """The open alerts that are critical."""
    annotations_changed_at: float | None = msgspec.field(default=None, name="annotated")
    """When annotations of the run changed last; known to lists that look at them."""

    @property
    def progress(self) -> float | None:
        """The share of completed steps, or None if the total is unknown."""
        if not self.max_steps or self.num_done is None:
            return None
        return min(1.0, max(0.0, self.num_done / self.max_steps))

    @property
    def num_done(self) -> int | None:
        """The number of completed steps, from the latest recorded one."""
        return None if self.step is None else self.step + 1 - self.first_step


def _planned_steps(records: Sequence[Mapping[str, Any]]) -> int | None:
    """Return the total number of steps that a training loop announced, or None."""
    for record in reversed(records):
        attributes = record.get("attributes")
        target = _integer(record.get("train_iterations_target"))
        if target is None and isinstance(attributes, Mapping):
            target = _integer(attributes.get("train_iterations_target"))
        if target is not None:
            return target
    return None


def overview(folder: RunFolder) -> RunOverview:
    """Return the overview of a run without reading its whole journal."""
    return overview_with_heartbeat(folder, read_heartbeat(folder.heartbeat))


def overview_with_heartbeat(folder: RunFolder, heartbeat: Heartbeat | None) -> RunOverview:
    """Return the overview of a run, given its last heartbeat."""
    ends = read_ends(folder, TAIL_BYTES, heartbeat)
    # Usually a few kilobytes suffice. Read more only if the tail has no step, or no loss.
    if not ends.has_step() and ends.size_bytes > TAIL_BYTES:
        ends = read_ends(folder, _MAX_TAIL_BYTES, heartbeat)
    elif not ends.has_loss() and ends.size_bytes > TAIL_BYTES:
        ends = read_ends(folder, _TAIL_BYTES_FOR_LOSS, heartbeat)
    tail, start, end = ends.tail, ends.start, ends.end
    clock_jumps_s = _clock_jumps_s(ends, heartbeat)
    first_time = _number(ends.head[0].get("time")) if ends.head else None
    last_time = _number(tail[-1].get("time")) if tail else first_time
    labels = labels_of(start, [*ends.head, *ends.attempt_head, *tail])
    tags = labels.get("tags")
    num_open, num_critical = _count_open_alerts(ends, heartbeat)
    steps = [record for record in tail if record["event"] != "event"]  # an event may refer to an earlier step
    return RunOverview(
        name=folder.name,
        state=ends.state(heartbeat),
        started=first_time,
        updated=last_time,
        duration_s=None
        if last_time is None or first_time is None
        else max(0.0, last_time - first_time - clock_jumps_s),
        clock_jumps_s=clock_jumps_s,
        step=_latest_step(steps),
        last_step_at=_number(_last([record for record in tail if record["event"] == "step"], "time")),
        first_step=_integer(start.get("first_step")) or 0,
        max_steps=_integer(start.get("max_steps")) or _planned_steps(tail) or _planned_steps(ends.attempt_head),
        train_loss=_latest_loss(steps),
        sec_per_step=_number(_first_known(_last(tail, "sec_per_step"), _last(tail, "window/iteration_sec_mean"))),
        recent_pace_s=_pace(_steps(tail, clock_jumps_s)),
        pace_s=_overall_pace(ends, clock_jumps_s),
        process=writer_of(start, heartbeat),
        display_name=str(labels["display_name"]) if labels.get("display_name") else None,
        note=str(labels["notes"]) if labels.get("notes") else None,
        tags=[str(tag) for tag in tags] if isinstance(tags, list) else [],
        session_tag=str(start["session_tag"]) if start.get("session_tag") else None,
        reason=str(end["reason"]) if end and end.get("reason") else None,
        size_bytes=ends.size_bytes,
        num_dropped=heartbeat.num_dropped if heartbeat else 0,
        num_open_alerts=num_open,
        num_critical_alerts=num_critical,
    )


def _count_open_alerts(ends: JournalEnds, heartbeat: Heartbeat | None) -> tuple[int, int]:
    """Return the number of open and of critical alerts, from the heartbeat and from alerts recorded after it."""
    history = AlertHistory()
    for record in ends.tail:
        if record["event"] in {"start", "alert"}:
            history.add(record)
    open_alerts = history.open_alerts()
    recorded_counts = (len(open_alerts), sum(alert.severity == "critical" for alert in open_alerts))
    if heartbeat is None or heartbeat.run_id != ends.start.get("run_id", heartbeat.run_id):
        return recorded_counts
    # The writer's count includes alerts opened before the tail, but may be older than the last records.
    heartbeat_counts = (heartbeat.num_open_alerts, heartbeat.num_critical_alerts)
    return heartbeat_counts if ends.size_bytes <= heartbeat.journal_bytes else max(recorded_counts, heartbeat_counts)


def _last(records: list[dict[str, Any]], name: str) -> Any:
    return next((record[name] for record in reversed(records) if record.get(name) is not None), None)


def _latest_loss(records: list[dict[str, Any]]) -> float | None:
    names = [*loss_names_in(set().union(*records)), "window/latest_loss"]
    return next((value for name in names if (value := _number(_last(records, name))) is not None), None)


def _latest_step(records: list[dict[str, Any]]) -> int | None:
    """Return the latest step; a window record may follow a step that was logged later."""
    records = [record for record in records if record.get("event") not in _LATE_KINDS]
    logged_step = _integer(_last([record for record in records if "window/sec" not in record], "global_step"))
    window_step = _integer(_last([record for record in records if "window/sec" in record], "global_step"))
    return logged_step if window_step is None else window_step if logged_step is None else max(logged_step, window_step)


def _clock_jumps_s(ends: JournalEnds, heartbeat: Heartbeat | None) -> float:
    """Return the sum of all changes of the wall clock, from the last record that has it or from the heartbeat."""
    seen_s = 0.0
    for record in reversed(ends.tail):
        known_s = _number(record.get("clock_jumps_s"))
        if known_s is not None and (record["event"] in {"start", "end"} or clock_jump_s(record)):
            return known_s + seen_s
        seen_s += clock_jump_s(record)
        if record["event"] == "start" and record.get("resumed") is False:
            return seen_s
    if heartbeat is not None and heartbeat.run_id == ends.start.get("run_id", heartbeat.run_id):
        return heartbeat.clock_jumps_s or seen_s
    return seen_s


def _overall_pace(ends: JournalEnds, clock_jumps_s: float) -> float | None:
    """Return seconds per step, from the first to the last known step of the current attempt."""
    before_s = _number(ends.start.get("clock_jumps_s")) or 0.0
    started_at = (_number(ends.start.get("time")) or 0.0) - before_s
    head = _steps(ends.attempt_head, before_s + sum(map(clock_jump_s, ends.attempt_head)))
    # The journal may start with earlier attempts; their pace and the pause before the resume do not count.
    points = [(step, time) for step, time in [*head, *_steps(ends.tail, clock_jumps_s)] if time >= started_at]
    if points and started_at and ends.start.get("resumed") is False and points[-1][0] > 0:
        points.insert(0, (0, started_at))
    return _pace(points)


def _steps(records: list[dict[str, Any]], clock_jumps_s: float) -> list[tuple[int, float]]:
    """Return the steps with their times on the first clock of the run, given the sum of jumps after the records."""
    points = []
    for record in reversed(records):
        if record["event"] == "step" and (step := step_of(record)) is not None and is_number(record.get("time")):
            points.append((step, float(record["time"]) - clock_jumps_s))
        clock_jumps_s -= clock_jump_s(record)
    return points[::-1]


def _pace(points: list[tuple[int, float]]) -> float | None:
    if len(points) < 2 or points[-1][0] <= points[0][0]:
        return None
    return max(0.0, (points[-1][1] - points[0][1]) / (points[-1][0] - points[0][0]))


def _first_known(*values: Any) -> Any:
    return next((value for value in values if value is not None), None)


def _number(value: Any) -> float | None:
    return float(value) if is_number(value) else None


def _integer(value: Any) -> int | None:
    return step_of({"global_step": value})
