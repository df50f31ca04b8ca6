"""Builds the API's responses from the store: one function per response model."""

from __future__ import annotations

import re
from typing import Any, Literal, cast

import msgspec

from tachograph.exceptions import ConfigError
from tachograph.journal import REQUESTS, RunFolder, RunState, state_at_end
from tachograph.reader import (
    Attempt,
    Failure,
    PluginUse,
    RunDigest,
    RunOverview,
    accepts_requests,
    checkpoint_records,
    find_copies,
    overview,
    parents_of,
    request_control,
)
from tachograph.reader.captured_code import last_code
from tachograph.records import POINT_KINDS, finite_or_none, loss_names_in, mark_non_finite, signal_of
from tachograph.server._copy_fields import copy_fields
from tachograph.server._copy_status import read_copy_status
from tachograph.server._models import (
    CURSOR_PATTERN,
    AttemptView,
    ControlAnswer,
    ControlRequest,
    ControlsPage,
    ControlView,
    CopyView,
    GoodputView,
    MetricsPage,
    MetricView,
    NoticeView,
    RecordQuery,
    RecordsPage,
    RequestIds,
    RunDetail,
    RunSummary,
    SeriesPage,
    SeriesQuery,
    SeriesView,
    SpanDetail,
    SpanQuery,
    SpanView,
    encode_number,
)
from tachograph.store import AnyAxis, Axis, MetricAxis, StoredRun, annotations_changed_at

__all__ = [
    "build_controls_page",
    "build_copy",
    "build_metrics_page",
    "build_open_run_summary",
    "build_records_page",
    "build_run_detail",
    "build_run_summary",
    "build_series",
    "build_series_page",
    "build_span_detail",
    "build_spans",
    "request_controls",
    "resolve_any_range",
    "resolve_range",
    "shift_series",
    "signal_name_of",
]

_SYSTEM_FIELDS = (
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
"""Fields of the start record that describe the machine."""
_NON_FACT_FIELDS = {
    *_SYSTEM_FIELDS,
    *("event", "time", "run_name", "run_id", "schema", "resumed", "session_tag", "perf_tag", "tags", "config", "git"),
    *("process", "log_every", "max_steps", "tachograph", "parents", "memory_cgroup"),
}
_MAX_CHECKPOINTS = 50
_MAX_TEXT_CHARS = 40_000
_MAX_SPAN_RECORDS = 1_000
_MAX_ANSWERS = 100
_MAX_NOTICES = 50
_MAX_REASON_CHARS = 300
_NOTICED_PROBLEMS = {"value_not_stored", "value_not_charted"}
_ROUTINE_EVENT = re.compile(
    "_metrics_update$|^control_(ack|registered)$|^one_logger_initialization$|^update_training_telemetry_config$"
)
_CURSOR = re.compile(CURSOR_PATTERN)
_MOVING_AXES = {"epoch", "samples", "tokens", "training_time"}
"""Axes on which new records can move earlier points."""


def build_run_summary(run: RunOverview) -> RunSummary:
    """Return a run's entry in the list."""
    # The estimate uses the pace of the whole attempt, which is steadier; the shown speed follows the recent pace.
    pace_s = finite_or_none(run.pace_s) or finite_or_none(run.sec_per_step)
    step_s = finite_or_none(run.recent_pace_s) or finite_or_none(run.sec_per_step) or pace_s
    is_running = run.state is RunState.RUNNING
    num_open_steps = run.max_steps - run.num_done if run.max_steps and run.num_done is not None else None
    return copy_fields(
        RunSummary,
        run,
        eta_s=max(0.0, num_open_steps * pace_s)
        if is_running and num_open_steps is not None and pace_s is not None
        else None,
        steps_per_sec=1 / step_s if step_s else None,
        train_loss=encode_number(run.train_loss),
        host=run.process.host if run.process else None,
    )


def build_open_run_summary(run: StoredRun) -> RunSummary:
    """Return the summary of an open run. Its index covers more than the head and tail of the journal."""
    summary = build_run_summary(overview(run.folder))
    summary.name = run.id
    summary.annotations_changed_at = annotations_changed_at(run.folder.path)
    if summary.train_loss is None:
        losses = (run.last_value(name) for name in loss_names_in(run.metric_names))
        summary.train_loss = encode_number(next((value for value in losses if value is not None), None))
    with run.lock:
        if run.indexed_share == 1.0:  # an open alert or a change of tags can be older than the tail of the journal
            tags = run.digest.facts.get("tags")
            summary.tags = [str(tag) for tag in tags] if isinstance(tags, list) else []
            alerts = run.digest.open_alerts
            summary.num_open_alerts = len(alerts)
            summary.num_critical_alerts = sum(alert.severity == "critical" for alert in alerts)
    return summary


def build_run_detail(run: StoredRun) -> RunDetail:
    """Return a run with its config, attempts, goodput and environment."""
    with run.lock:
        digest = run.digest
        start = digest.attempts[-1].start if digest.attempts else {}
        facts = {name: value for name, value in digest.facts.items() if name not in _NON_FACT_FIELDS}
        goodput = digest.goodput
        tag = digest.perf_tag
        return RunDetail(
            **msgspec.structs.asdict(build_open_run_summary(run)),
            version=run.version,
            indexed_share=run.indexed_share,
            run_id=str(start["run_id"]) if "run_id" in start else None,
            path=str(run.folder.path),
            copy=build_copy(run.folder),
            perf_tag=[tag] if isinstance(tag, str) else tag or [],
            attempts=[_build_attempt(attempt, digest) for attempt in digest.attempts],
            config=mark_non_finite(digest.config),
            summary=mark_non_finite(digest.summary),
            facts=mark_non_finite(facts),
            system=mark_non_finite({name: start[name] for name in _SYSTEM_FIELDS if start.get(name) is not None}),
            git=mark_non_finite(start["git"]) if isinstance(start.get("git"), dict) else {},
            code=mark_non_finite({name: value for name, value in last_code(digest).items() if name != "event"}),
            parents=parents_of(digest),
            plugins=[_build_plugin(plugin) for plugin in digest.plugins],
            failure=_build_failure(digest),
            before_first_record_s=digest.before_first_record_s,
            goodput=None if goodput is None else _build_goodput(goodput),
            phases_s=digest.phases,
            energy=digest.energy,
            sampling=digest.sampling,
            num_records={**digest.counts, **{kind: count for kind, count in run.media.num_records.items() if count}},
            num_lost_records=digest.num_lost_records,
            num_media_lost=digest.num_media_lost,
            num_bad_lines=run.num_bad_lines,
            notices=_list_notices(digest),
            checkpoints=mark_non_finite(checkpoint_records(digest)[-_MAX_CHECKPOINTS:]),
        )


def build_copy(folder: RunFolder) -> CopyView | None:
    """Return how far a run was received; None if it is not a copy."""
    status = read_copy_status(folder)
    return None if status is None else copy_fields(CopyView, status)


def _build_attempt(attempt: Attempt, digest: RunDigest) -> AttemptView:
    end = attempt.end or {}
    if attempt.end is not None:
        state = state_at_end(attempt.end)
    else:
        # An attempt that was followed by another one but has no exit record must have crashed.
        state = digest.state if attempt is digest.attempts[-1] else RunState.CRASHED
    return copy_fields(
        AttemptView,
        attempt,
        state=state,
        started=finite_or_none(attempt.start.get("time")),
        updated=attempt.last_time,
        duration_s=attempt.duration_s(),
        energy_kwh=None if attempt.energy is None else attempt.energy.kwh,
        reason=str(end["reason"]) if end.get("reason") else None,
    )


def _build_failure(digest: RunDigest) -> Failure | None:
    failure = digest.failure
    if failure is not None:
        failure.traceback = failure.traceback[-_MAX_TEXT_CHARS:]
        failure.output = {stream: text[-_MAX_TEXT_CHARS:] for stream, text in failure.output.items()}
        failure.cause = failure.cause[:_MAX_TEXT_CHARS]
        failure.confidence = failure.confidence[:_MAX_TEXT_CHARS]
        failure.time = finite_or_none(failure.time)
    return failure


def _list_notices(digest: RunDigest) -> list[NoticeView]:
    """Return each problem with logged data once, oldest first."""
    notices: dict[tuple[str | None, str], NoticeView] = {}
    for record in digest.latest("telemetry_error"):
        field, reason = record.get("field"), str(record.get("reason", ""))[:_MAX_REASON_CHARS]
        kind = str(record.get("kind"))
        is_rejected = kind == "records_lost" and reason.startswith("log() expects")
        if kind in _NOTICED_PROBLEMS or is_rejected:
            notice = NoticeView(field=str(field)[:_MAX_REASON_CHARS] if field else None, reason=reason)
            notices.setdefault((notice.field, reason), notice)
    return list(notices.values())[:_MAX_NOTICES]


def _build_plugin(plugin: PluginUse) -> PluginUse:
    return msgspec.structs.replace(plugin, options=mark_non_finite(plugin.options))


def _build_goodput(goodput: Any) -> GoodputView:
    fields = msgspec.structs.asdict(goodput)
    wall_s = fields.pop("wall_s")
    parts_s = {name.removesuffix("_s"): value for name, value in fields.items()}
    return GoodputView(share=goodput.share, is_meaningful=goodput.is_meaningful, wall_s=wall_s, parts_s=parts_s)


def build_metrics_page(run: StoredRun) -> MetricsPage:
    """Return a summary of every metric."""
    summaries = run.metrics()
    copies = find_copies(summaries)
    with run.lock:
        step_metrics = run.digest.step_metrics
        printed_metrics = run.digest.printed_metrics
    return MetricsPage(
        version=run.version,
        indexed_share=run.indexed_share,
        metrics=[
            copy_fields(
                MetricView,
                summary,
                name=name,
                signal=signal_name_of(name),
                same_as=copies.get(name),
                last=encode_number(summary.last),
                low=finite_or_none(summary.low),
                high=finite_or_none(summary.high),
                x_metric=step_metrics[name] if step_metrics.get(name) in summaries else None,
                is_printed=name in printed_metrics,
            )
            for name, summary in summaries.items()
        ],
    )


def signal_name_of(metric: str) -> str | None:
    """Return the signal that a metric is, such as `loss`; None if it is none."""
    signal = signal_of(metric)
    return signal[0] if signal else None


def build_series_page(run: StoredRun, query: SeriesQuery) -> SeriesPage:
    """Return the points of metrics in a range, or only points recorded since an earlier response."""
    with run.lock:
        after = _parse_cursor(query.after, run.generation)
        if query.x in _MOVING_AXES or query.x_metric is not None:
            after = None  # a new step may move earlier ones: the length of an epoch is known when it ends
        # The lock is held throughout: all series and the cursor must be of the same moment.
        series = build_series(run, query, query.points, after)
        return SeriesPage(
            version=run.version,
            indexed_share=run.indexed_share,
            cursor=_encode_cursor(run),
            is_whole=after is None,
            start=run.started_at,
            series=series,
        )


def build_series(run: StoredRun, query: Any, num_points: int, after: dict[str, int] | None = None) -> list[SeriesView]:
    """Return the points of metrics in a range.

    Args:
        run: the run.
        query: has the names of the metrics, the axis and the range.
        num_points: the approximate number of points per line.
        after: the number of rows of each stream to skip.
    """
    with run.lock:
        axis, low, high, shift = resolve_any_range(run, query)
        problem = run.axis_problem(axis)
        views = []
        for name in dict.fromkeys(query.name):
            lines, marks = run.series(name, axis=axis, low=low, high=high, num_points=num_points, after=after)
            reason = problem if name in run.metric_names else f"no metric {name!r} in this run"
            last = encode_number(run.last_value(name))
            view = SeriesView(name=name, last=last, lines=lines, marks=marks, reason=reason)
            if isinstance(axis, MetricAxis):
                view.num_unplaced = run.num_unplaced(name, axis)
            shift_series(view, shift)
            views.append(view)
        return views


def shift_series(view: SeriesView, shift: float) -> None:
    """Subtract an offset from the positions of a series."""
    if shift:
        for item in view.lines:
            item.x = [position - shift for position in item.x]
            item.mean_x = [position - shift for position in item.mean_x]
        for mark in view.marks:
            mark.x -= shift


def resolve_any_range(run: StoredRun, query: Any) -> tuple[AnyAxis, float | None, float | None, float]:
    """Return the same as `resolve_range`, for a query that may choose a metric as its axis."""
    if query.x_metric is not None:
        return MetricAxis(query.x_metric), query.low, query.high, 0.0
    return resolve_range(run, query)


def resolve_range(run: StoredRun, query: Any) -> tuple[Axis, float | None, float | None, float]:
    """Return the axis of the store, the range on it, and the offset to subtract from its values.

    The store has no axes that start at 0: `relative` is Unix time minus the start of the run, and `relative_step` is
    the step minus the first one.
    """
    if query.x == "relative":
        axis, shift = "time", run.started_at
    elif query.x == "relative_step":
        axis, shift = "step", float(run.first_step)
    else:
        return query.x, query.low, query.high, 0.0
    low, high = (None if limit is None else limit + shift for limit in (query.low, query.high))
    return cast(Axis, axis), low, high, shift


def _encode_cursor(run: StoredRun) -> str:
    return "-".join([run.generation, *(f"{stream}:{rows}" for stream, rows in run.cursor().items())])


def _parse_cursor(cursor: str | None, generation: str) -> dict[str, int] | None:
    """Return the number of rows the client has of each stream; None if it has none or they are of another journal."""
    if cursor is None:
        return None
    match = _CURSOR.fullmatch(cursor)
    if match is None:
        raise ConfigError(f"after={cursor[:80]!r}: invalid cursor; send the `cursor` of an earlier response")
    if match[1] != generation:  # the journal was replaced: the client must start over
        return None
    return {stream: int(rows[:15]) for stream, _, rows in (part.partition(":") for part in match[2].split("-")[1:])}


def build_spans(run: StoredRun, query: SpanQuery) -> SpanView:
    """Return the spans in a time range."""
    return run.spans(query.low, query.high, num_points=query.points, max_spans=query.most)


def build_span_detail(run: StoredRun, span_id: str) -> SpanDetail | None:
    """Return the records of a span; None if the run has no such span."""
    records = [record for record in run.kept_records() if record.get("span_id") == span_id]
    return SpanDetail(records=mark_non_finite(records[:_MAX_SPAN_RECORDS])) if records else None


def build_records_page(run: StoredRun, query: RecordQuery) -> RecordsPage:
    """Return the latest records of each requested kind, newest first."""
    with run.lock:
        kinds = query.kind or [kind for kind in run.digest.counts if kind not in POINT_KINDS and "span" not in kind]
        records: list[dict[str, Any]] = []
        num_left_out = 0
        for kind in dict.fromkeys(kinds):
            records_of_kind = run.digest.latest(kind)
            visible_records = (
                records_of_kind if query.routine else [record for record in records_of_kind if not _is_routine(record)]
            )
            num_left_out += len(records_of_kind) - len(visible_records)
            records += visible_records[-query.limit :]
        # Each kind is in order, but the kinds were collected one after the other.
        records.sort(key=lambda record: finite_or_none(record.get("time")) or 0.0)
        counts = run.digest.counts
        return RecordsPage(
            version=run.version, num_records=counts, num_left_out=num_left_out, records=mark_non_finite(records[::-1])
        )


def _is_routine(record: dict[str, Any]) -> bool:
    return record["event"] == "event" and bool(_ROUTINE_EVENT.search(str(record.get("name"))))


def build_controls_page(run: StoredRun, problem: str | None = None) -> ControlsPage:
    """Return the controls of a run and the answers to earlier requests.

    Args:
        run: The run.
        problem: Why the run accepts no requests from this server, if it does not.
    """
    with run.lock:
        digest = run.digest
        return ControlsPage(
            version=run.version,
            is_open=accepts_requests(digest),
            problem=problem,
            controls=[
                copy_fields(
                    ControlView,
                    control,
                    name=name,
                    kind=_control_kind(control.value),
                    value=_control_value(control.value),
                    initial=_control_value(control.initial),
                    min=finite_or_none(control.min),
                    max=finite_or_none(control.max),
                )
                for name, control in digest.controls.items()
                if name not in REQUESTS
            ],
            requests=list(REQUESTS),
            answers=[_build_answer(record) for record in digest.latest("event", "control_ack")[::-1][:_MAX_ANSWERS]],
            changes=mark_non_finite(digest.latest("control_change")[::-1][:_MAX_ANSWERS]),
        )


def _control_kind(value: Any) -> Literal["bool", "int", "float"]:
    return "bool" if isinstance(value, bool) else "int" if isinstance(value, int) else "float"


def _control_value(value: Any) -> float | bool | None:
    return value if isinstance(value, bool) else finite_or_none(value)


def _build_answer(record: dict[str, Any]) -> ControlAnswer:
    return ControlAnswer(
        id=str(record["id"]) if "id" in record else None,
        control=str(record.get("control", "?")),
        status=str(record.get("status", "?")),
        time=finite_or_none(record.get("time")) or 0.0,
        value=mark_non_finite(record.get("value", record.get("requested"))),
        reason=str(record["reason"]) if record.get("reason") else None,
        wait_s=finite_or_none(record.get("wait_s")),
    )


def request_controls(run: StoredRun, request: ControlRequest, source: str) -> RequestIds:
    """Write a control request for the training process to read."""
    with run.lock:
        return RequestIds(request_control(run.digest, request.values, source=source))
