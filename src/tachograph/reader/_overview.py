"""What a list of runs needs, from the head and the tail of each journal alone."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from tachograph.journal._folder import RunFolder
from tachograph.journal._liveness import (
    Heartbeat,
    ProcessIdentity,
    RunState,
    judge,
    read_heartbeat,
    state_at_end,
    writer_of,
)
from tachograph.reader._alerts import AlertBook
from tachograph.records import decode, decode_block, is_number, step_of

__all__ = ["RunOverview", "overview"]

_HEAD_BYTES = 1 << 20
_TAIL_BYTES = 16 << 10
_TAIL_BYTES_FOR_LOSS = 128 << 10
_BEGIN_BYTES = 16 << 10
_MOST_TAIL_BYTES = 8 << 20


class RunOverview(msgspec.Struct, kw_only=True):
    """One line of a list of runs."""

    name: str
    state: RunState
    started: float | None = None
    updated: float | None = None
    duration_s: float | None = None
    step: int | None = None
    stepped: float | None = None
    """When the last step was recorded."""
    first_step: int = 0
    """What the first step is called: 0, or 1 where steps are counted when they are done."""
    max_steps: int | None = None
    train_loss: float | None = None
    sec_per_step: float | None = None
    recent_pace_s: float | None = None
    """Seconds per step over the latest records."""
    pace_s: float | None = None
    """Seconds per step with the pauses between steps, over all or, of a resumed run, the latest of them."""
    process: ProcessIdentity | None = None
    tags: list[str] = []
    session_tag: str | None = None
    reason: str | None = None
    size_bytes: int = 0
    num_dropped: int = 0
    num_open_alerts: int = 0
    num_critical_alerts: int = 0
    """Of the open ones, those that are critical."""

    @property
    def progress(self) -> float | None:
        """Share of the steps that are done, if it is known how many there will be."""
        if not self.max_steps or self.num_done is None:
            return None
        return min(1.0, max(0.0, self.num_done / self.max_steps))

    @property
    def num_done(self) -> int | None:
        """Steps that are done, as far as the latest that was recorded tells."""
        return None if self.step is None else self.step + 1 - self.first_step


def _target(records: Sequence[Mapping[str, Any]]) -> int | None:
    """Return how many steps there will be, as far as a training loop says it."""
    for record in reversed(records):
        attributes = record.get("attributes")
        said = _integer(record.get("train_iterations_target"))
        if said is None and isinstance(attributes, Mapping):
            said = _integer(attributes.get("train_iterations_target"))
        if said is not None:
            return said
    return None


def overview(folder: RunFolder) -> RunOverview:
    """Summarise a run without reading all of it."""
    heartbeat = read_heartbeat(folder.heartbeat)
    ends = _ends(folder, _TAIL_BYTES, heartbeat)
    if not ends.has_step() and ends.size_bytes > _TAIL_BYTES:
        ends = _ends(folder, _MOST_TAIL_BYTES, heartbeat)
    elif not ends.has_loss() and ends.size_bytes > _TAIL_BYTES:
        ends = _ends(folder, _TAIL_BYTES_FOR_LOSS, heartbeat)
    tail, start, end = ends.tail, ends.start, ends.end
    state = judge(start or None, heartbeat) if end is None else state_at_end(end)
    first_time = _number(ends.head[0].get("time")) if ends.head else None
    last_time = _number(tail[-1].get("time")) if tail else first_time
    tags = start.get("tags")
    num_open, num_critical = _num_alerts(ends, heartbeat)
    steps = [record for record in tail if record["event"] != "event"]  # an event may be about an earlier step
    return RunOverview(
        name=folder.name,
        state=state,
        started=first_time,
        updated=last_time,
        duration_s=max(0.0, last_time - first_time) if last_time is not None and first_time is not None else None,
        step=_latest_step(steps),
        stepped=_number(_last([record for record in tail if record["event"] == "step"], "time")),
        first_step=_integer(start.get("first_step")) or 0,
        max_steps=_integer(start.get("max_steps")) or _target(tail) or _target(ends.begin),
        train_loss=_number(_first_known(_last(steps, "train_loss"), _last(steps, "window/latest_loss"))),
        sec_per_step=_number(_first_known(_last(tail, "sec_per_step"), _last(tail, "window/iteration_sec_mean"))),
        recent_pace_s=_pace(_steps(tail)),
        pace_s=_overall_pace(ends),
        process=writer_of(start, heartbeat),
        tags=[str(tag) for tag in tags] if isinstance(tags, list) else [],
        session_tag=str(start["session_tag"]) if start.get("session_tag") else None,
        reason=str(end["reason"]) if end and end.get("reason") else None,
        size_bytes=ends.size_bytes,
        num_dropped=heartbeat.num_dropped if heartbeat else 0,
        num_open_alerts=num_open,
        num_critical_alerts=num_critical,
    )


class _Ends(NamedTuple):
    """The first record of a journal, those with which the present attempt began, and the last ones."""

    head: list[dict[str, Any]]
    begin: list[dict[str, Any]]
    tail: list[dict[str, Any]]
    size_bytes: int

    @property
    def start(self) -> dict[str, Any]:
        found = (record for record in [*reversed(self.tail), *self.begin, *self.head] if record["event"] == "start")
        return next(found, {})

    @property
    def end(self) -> dict[str, Any] | None:
        found = next((record for record in reversed(self.tail) if record["event"] in {"start", "end"}), None)
        return found if found is not None and found["event"] == "end" else None

    def has_step(self) -> bool:
        return any("global_step" in record for record in self.tail)

    def has_loss(self) -> bool:
        return any("train_loss" in record or "window/latest_loss" in record for record in self.tail)


def _num_alerts(ends: _Ends, heartbeat: Heartbeat | None) -> tuple[int, int]:
    """Return how many alerts are open, and critical: by the writer's own count, and by what it has recorded since."""
    book = AlertBook()
    for record in ends.tail:
        if record["event"] in {"start", "alert"}:
            book.take(record)
    found = book.open_alerts()
    told = (len(found), sum(alert.severity == "critical" for alert in found))
    if heartbeat is None or heartbeat.run_id != ends.start.get("run_id", heartbeat.run_id):
        return told
    counted = (heartbeat.num_open_alerts, heartbeat.num_critical_alerts)
    return counted if ends.size_bytes <= heartbeat.journal_bytes else max(told, counted)


def _ends(folder: RunFolder, num_bytes: int, heartbeat: Heartbeat | None) -> _Ends:
    begins_at = heartbeat.start_bytes if heartbeat else 0
    try:
        with open(folder.journal, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            head = _lines(file.readline(_HEAD_BYTES))
            begin: list[dict[str, Any]] = []
            if 0 < begins_at < size - num_bytes:
                file.seek(begins_at)
                begin = _lines(file.read(_BEGIN_BYTES))
            file.seek(max(0, size - num_bytes))
            return _Ends(head, begin, _lines(file.read()), size)
    except OSError:
        return _Ends([], [], [], 0)


def _lines(block: bytes) -> list[dict[str, Any]]:
    first, last = block.find(b"\n") + 1, block.rfind(b"\n") + 1
    whole = decode_block(block[:last] if block.startswith(b"{") else block[first:last])
    if whole is not None:
        return whole
    records = []
    for line in block[:last].split(b"\n"):
        try:
            records.append(decode(line))
        except (msgspec.MsgspecError, ValueError, RecursionError):
            continue  # the block begins in the middle of a line, or the line is bad
    return records


def _last(records: list[dict[str, Any]], name: str) -> Any:
    return next((record[name] for record in reversed(records) if record.get(name) is not None), None)


def _latest_step(records: list[dict[str, Any]]) -> int | None:
    """Return the step the run has come to; a window of iterations may be told after a later step was logged."""
    logged = _integer(_last([record for record in records if "window/sec" not in record], "global_step"))
    told = _integer(_last([record for record in records if "window/sec" in record], "global_step"))
    return logged if told is None else told if logged is None else max(logged, told)


def _overall_pace(ends: _Ends) -> float | None:
    """Return seconds per step, from the first step of the present attempt that is known to the last."""
    began = _number(ends.start.get("time")) or 0.0
    points = [(step, time) for step, time in _steps([*ends.begin, *ends.tail]) if time >= began]
    if points and began and ends.start.get("resumed") is False and points[-1][0] > 0:
        points.insert(0, (0, began))
    return _pace(points)


def _steps(records: list[dict[str, Any]]) -> list[tuple[int, float]]:
    return [
        (step, float(record["time"]))
        for record in records
        if record["event"] == "step" and (step := step_of(record)) is not None and is_number(record.get("time"))
    ]


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
