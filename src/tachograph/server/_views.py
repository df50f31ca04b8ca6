"""From the store to the answers of the API: one function for each answer."""

from __future__ import annotations

import os
import re
from typing import Any, Literal

import msgspec

from tachograph.exceptions import ConfigError
from tachograph.journal import REQUESTS, RunState, state_at_end
from tachograph.reader import Attempt, RunDigest, RunOverview, accepts_requests, overview, request_control
from tachograph.records import POINT_KINDS, finite_or_none, mark_non_finite
from tachograph.server._models import (
    CURSOR_PATTERN,
    Answer,
    AttemptView,
    Control,
    ControlRequest,
    Controls,
    Goodput,
    Metric,
    Metrics,
    RecordQuery,
    Records,
    Requested,
    RunDetail,
    RunLine,
    Runs,
    SeriesQuery,
    SeriesView,
    SpanDetail,
    SpanQuery,
    SpanView,
    Views,
    number,
)
from tachograph.store import Axis, Store, StoredRun

__all__ = [
    "controls",
    "detail",
    "line",
    "metrics",
    "opened_line",
    "records",
    "request_controls",
    "runs",
    "series",
    "span",
    "spans",
    "view_range",
]

_SYSTEM = (
    "host",
    "platform",
    "python",
    "torch",
    "num_cpus",
    "host_mem_total_gb",
    "gpus",
    "world_size",
    "command",
    "cwd",
)
_NOT_FACTS = {
    *_SYSTEM,
    *("event", "time", "run_name", "run_id", "schema", "resumed", "session_tag", "perf_tag", "tags", "config", "git"),
    *("process", "log_every", "max_steps", "tachograph"),
}
_MOST_CHECKPOINTS = 50
_ROUTINE = re.compile("_metrics_update$|^control_(ack|registered)$")
_CURSOR = re.compile(CURSOR_PATTERN)


def line(run: RunOverview) -> RunLine:
    """Return one line of the list."""
    pace_s = finite_or_none(run.pace_s) or finite_or_none(run.sec_per_step)
    step_s = finite_or_none(run.recent_pace_s) or finite_or_none(run.sec_per_step) or pace_s
    is_running = run.state is RunState.RUNNING
    num_left = run.max_steps - run.num_done if run.max_steps and run.num_done is not None else None
    return RunLine(
        name=run.name,
        state=run.state,
        started=finite_or_none(run.started),
        updated=finite_or_none(run.updated),
        duration_s=finite_or_none(run.duration_s),
        step=run.step,
        stepped=finite_or_none(run.stepped),
        max_steps=run.max_steps,
        progress=run.progress,
        eta_s=max(0.0, num_left * pace_s) if is_running and num_left is not None and pace_s is not None else None,
        steps_per_sec=1 / step_s if step_s else None,
        train_loss=number(run.train_loss),
        host=run.process.host if run.process else None,
        tags=run.tags,
        session_tag=run.session_tag,
        reason=run.reason,
        size_bytes=run.size_bytes,
        num_dropped=run.num_dropped,
        num_open_alerts=run.num_open_alerts,
        num_critical_alerts=run.num_critical_alerts,
    )


def opened_line(run: StoredRun) -> RunLine:
    """Return the line of a run that is open, and of which more is known than its head and tail say."""
    found = line(overview(run.folder))
    if found.train_loss is None:
        found.train_loss = number(run.last_value("train_loss"))
    with run.lock:
        if run.indexed == 1.0:  # an alert may have been opened long before the tail
            alerts = run.digest.open_alerts
            found.num_open_alerts = len(alerts)
            found.num_critical_alerts = sum(alert.severity == "critical" for alert in alerts)
    return found


def runs(store: Store) -> Runs:
    """Return the list."""
    return Runs(os.path.abspath(store.log_dir), [line(run) for run in store.runs()])


def detail(run: StoredRun) -> RunDetail:
    """Return all that is known of a run, but for its points."""
    with run.lock:
        digest = run.digest
        start = digest.attempts[-1].start if digest.attempts else {}
        goodput = digest.goodput
        tag = digest.perf_tag
        return RunDetail(
            **msgspec.structs.asdict(opened_line(run)),
            version=run.version,
            indexed=run.indexed,
            run_id=str(start["run_id"]) if "run_id" in start else None,
            path=str(run.folder.path),
            perf_tag=[tag] if isinstance(tag, str) else tag or [],
            attempts=[_attempt(attempt, digest) for attempt in digest.attempts],
            config=mark_non_finite(digest.config),
            facts=mark_non_finite({name: value for name, value in start.items() if name not in _NOT_FACTS}),
            system=mark_non_finite({name: start[name] for name in _SYSTEM if start.get(name) is not None}),
            git=mark_non_finite(start["git"]) if isinstance(start.get("git"), dict) else {},
            goodput=None if goodput is None else _goodput(goodput),
            phases_s=digest.phases,
            num_records=digest.counts,
            num_lost_records=digest.num_lost_records,
            num_bad_lines=run.num_bad_lines,
            checkpoints=mark_non_finite(_checkpoints(digest)[-_MOST_CHECKPOINTS:]),
        )


def _checkpoints(digest: RunDigest) -> list[dict[str, Any]]:
    """Return the checkpoints that were logged; where none was, those that spans tell of."""
    logged = digest.latest("checkpoint")
    if logged:
        return logged
    return [
        {
            "event": "checkpoint",
            "time": record.get("time"),
            "global_step": record.get("current_iteration"),
            "checkpoint_path": record.get("checkpoint_directory"),
            "size_bytes": record.get("checkpoint_size"),
        }
        for record in digest.latest("event", "save_checkpoint_success")
        if record.get("checkpoint_directory")
    ]


def _attempt(attempt: Attempt, digest: RunDigest) -> AttemptView:
    end = attempt.end or {}
    if attempt.end is not None:
        state = state_at_end(attempt.end)
    else:
        state = digest.state if attempt is digest.attempts[-1] else RunState.CRASHED
    return AttemptView(
        index=attempt.index,
        state=state,
        started=finite_or_none(attempt.start.get("time")),
        updated=attempt.last_time,
        first_step=attempt.first_step,
        last_step=attempt.last_step,
        num_steps=attempt.num_steps,
        num_records=attempt.num_records,
        reason=str(end["reason"]) if end.get("reason") else None,
    )


def _goodput(goodput: Any) -> Goodput:
    fields = msgspec.structs.asdict(goodput)
    wall_s = fields.pop("wall_s")
    return Goodput(share=goodput.share, wall_s=wall_s, parts_s={name[:-2]: value for name, value in fields.items()})


def metrics(run: StoredRun) -> Metrics:
    """Return every metric in a few numbers."""
    return Metrics(
        version=run.version,
        indexed=run.indexed,
        metrics=[
            Metric(
                name=name,
                kind=item.kind,
                count=item.count,
                last=number(item.last),
                last_step=item.last_step,
                low=finite_or_none(item.low),
                high=finite_or_none(item.high),
                num_not_finite=item.num_not_finite,
            )
            for name, item in run.metrics().items()
        ],
    )


def series(run: StoredRun, query: SeriesQuery) -> Views:
    """Return metrics in a view, or what was recorded since an earlier one."""
    with run.lock:
        after = _after(query.after, run.generation)
        axis, low, high, shift = view_range(run, query)
        found = []
        for name in dict.fromkeys(query.name):
            lines, marks = run.series(name, axis=axis, low=low, high=high, num_points=query.points, after=after)
            if shift:
                for item in lines:
                    item.x = [place - shift for place in item.x]
                    item.mean_x = [place - shift for place in item.mean_x]
                for mark in marks:
                    mark.x -= shift
            found.append(SeriesView(name=name, last=number(run.last_value(name)), lines=lines, marks=marks))
        return Views(
            version=run.version,
            indexed=run.indexed,
            cursor=_cursor(run),
            is_whole=after is None,
            start=run.started,
            series=found,
        )


def view_range(run: StoredRun, query: Any) -> tuple[Axis, float | None, float | None, float]:
    """Return the axis of the columns, the view on it, and what is to be taken off for the axis that was asked for."""
    if query.x != "relative":
        return query.x, query.low, query.high, 0.0
    shift = run.started
    return (
        "time",
        None if query.low is None else query.low + shift,
        None if query.high is None else query.high + shift,
        shift,
    )


def _cursor(run: StoredRun) -> str:
    return "-".join([run.generation, *(f"{stream}:{rows}" for stream, rows in run.cursor().items())])


def _after(cursor: str | None, generation: str) -> dict[str, int] | None:
    """Return how many rows of each stream are known; None if nothing is, or it was of another journal."""
    if cursor is None:
        return None
    parsed = _CURSOR.fullmatch(cursor)
    if parsed is None:
        raise ConfigError(f"after={cursor[:80]!r}: not a cursor; give the one of an earlier answer")
    if parsed[1] != generation:
        return None
    return {stream: int(rows[:15]) for stream, _, rows in (part.partition(":") for part in parsed[2].split("-")[1:])}


def spans(run: StoredRun, query: SpanQuery) -> SpanView:
    """Return the spans of a stretch of time."""
    return run.spans(query.low, query.high, num_points=query.points, most=query.most)


def span(run: StoredRun, span_id: str) -> SpanDetail | None:
    """Return what was recorded of a span."""
    found = [record for record in run.kept_records() if record.get("span_id") == span_id]
    return SpanDetail(records=mark_non_finite(found[:1_000])) if found else None


def records(run: StoredRun, query: RecordQuery) -> Records:
    """Return the latest records that are no points."""
    with run.lock:
        kinds = query.kind or [kind for kind in run.digest.counts if kind not in POINT_KINDS and "span" not in kind]
        found: list[dict[str, Any]] = []
        num_left_out = 0
        for kind in dict.fromkeys(kinds):
            known = run.digest.latest(kind)
            wanted = known if query.routine else [record for record in known if not _is_routine(record)]
            num_left_out += len(known) - len(wanted)
            found += wanted[-query.limit :]
        found.sort(key=lambda record: finite_or_none(record.get("time")) or 0.0)
        counts = run.digest.counts
        return Records(
            version=run.version, num_records=counts, num_left_out=num_left_out, records=mark_non_finite(found[::-1])
        )


def _is_routine(record: dict[str, Any]) -> bool:
    return record["event"] == "event" and bool(_ROUTINE.search(str(record.get("name"))))


def controls(run: StoredRun) -> Controls:
    """Return what can be steered, and what the trainer answered."""
    with run.lock:
        digest = run.digest
        return Controls(
            version=run.version,
            is_open=accepts_requests(digest),
            controls=[
                Control(
                    name=name,
                    kind=_kind(view.value),
                    value=_value(view.value),
                    min=finite_or_none(view.min),
                    max=finite_or_none(view.max),
                )
                for name, view in digest.controls.items()
                if name not in REQUESTS
            ],
            requests=list(REQUESTS),
            answers=[_answer(record) for record in digest.latest("event", "control_ack")[::-1][:100]],
            changes=mark_non_finite(digest.latest("control_change")[::-1][:100]),
        )


def _kind(value: Any) -> Literal["bool", "int", "float"]:
    return "bool" if isinstance(value, bool) else "int" if isinstance(value, int) else "float"


def _value(value: Any) -> float | bool | None:
    return value if isinstance(value, bool) else finite_or_none(value)


def _answer(record: dict[str, Any]) -> Answer:
    return Answer(
        id=str(record["id"]) if "id" in record else None,
        control=str(record.get("control", "?")),
        status=str(record.get("status", "?")),
        time=finite_or_none(record.get("time")) or 0.0,
        value=mark_non_finite(record.get("value", record.get("requested"))),
        reason=str(record["reason"]) if record.get("reason") else None,
        wait_s=finite_or_none(record.get("wait_s")),
    )


def request_controls(run: StoredRun, request: ControlRequest) -> Requested:
    """Ask the trainer."""
    with run.lock:
        return Requested(request_control(run.digest, request.values, source="dashboard"))
