"""The digest of a run: attempts, counts, controls, tags, spans, alerts and goodput, without the values of metrics.

`RunDigest` adds records in order and keeps bounded state, so a journal of any length can be read once. Most records of
a long journal are plain steps with the same fields. `batch_records` groups such neighbours; the digest then adds only
the first and the last record of a batch in full and updates the counters for those in between.
"""

from __future__ import annotations

import itertools
import math
import time
from collections import deque
from collections.abc import Mapping
from typing import Any

import msgspec

from tachograph.journal import (
    LOG_EVERY_MAX,
    LOG_EVERY_MIN,
    RunFolder,
    RunState,
    infer_state,
    read_heartbeat,
    state_at_end,
    writer_of,
)
from tachograph.reader._alerts import Alert, AlertHistory
from tachograph.reader._batches import RecordBatch, time_of, times_of
from tachograph.reader._energy import Energy, parse_energy, total_energy
from tachograph.reader._failure import Failure, crash_reason, failure_of
from tachograph.reader._goodput import Goodput, GoodputMeter
from tachograph.reader._labels import labels_of
from tachograph.reader._plugins import PLUGIN_EVENT, PLUGIN_SUMMARY_EVENT, PluginUse, plugins_of
from tachograph.reader._spans import SPAN_KINDS, RecordedSpan, SpanGroup, SpanTreeBuilder
from tachograph.records import (
    CONFIG_CHANGED,
    METRIC_DEFINED,
    POINT_KINDS,
    RUN_LABELED,
    SUMMARY,
    clock_jump_s,
    finite_or_none,
    step_of,
)

__all__ = ["Attempt", "ControlState", "RunDigest", "set_step_metric"]

_MAX_LATEST = 1_000
_MAX_EVENT_NAMES = 200
_OBSERVATION_FIELDS = {"event", "time", "name", "span_id", "global_step", "framework", "method", "version", "reason"}
"""Fields of the event `instrumented` that say how the run was observed; the others are facts about the training."""
_KINDS_NOT_KEPT = {*POINT_KINDS, "completions", "energy", "media", "histograms", *SPAN_KINDS}


class Attempt(msgspec.Struct):
    """The records of one process; a resumed run has several attempts."""

    index: int
    start: dict[str, Any]
    end: dict[str, Any] | None = None
    first_step: int | None = None
    last_step: int | None = None
    last_time: float | None = None
    clock_jumps_s: float = 0.0
    """By how much the wall clock was set while it was recorded."""
    num_records: int = 0
    num_steps: int = 0
    energy: Energy | None = None
    """The energy that it used; None if no counter could be read."""

    def duration_s(self, until: float | None = None) -> float | None:
        """Return how long it was recorded, up to its last record or to `until`; None if that is unknown."""
        begin, end = finite_or_none(self.start.get("time")), self.last_time if until is None else until
        return None if begin is None or end is None else max(0.0, end - begin - self.clock_jumps_s)


class ControlState(msgspec.Struct):
    """The value, bounds and last request of a control."""

    value: float | bool | None = None
    min: float | None = None
    max: float | None = None
    initial: float | bool | None = None
    """The value that the training code started with."""
    last_answer: str | None = None
    """Status of the last request: pending, applied, clamped, unchanged, superseded or rejected."""


class RunDigest:
    """Summarises the records of a run, added in order; the values of metrics are not kept."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self.name = folder.name
        self._reset()

    def _reset(self) -> None:
        self._attempts: list[Attempt] = []
        self._counts: dict[str, int] = {}
        self._latest: dict[tuple[str, str], deque[tuple[int, dict[str, Any]]]] = {}
        self._num_kept = itertools.count()
        self._num_lost_records = 0
        self._crash_reasons: dict[int, str] = {}
        self._alerts = AlertHistory()
        self._spans = SpanTreeBuilder()
        self._goodput = GoodputMeter()

    def add(self, batch: RecordBatch) -> list[RecordedSpan]:
        """Add a batch of records; return the spans that it completes."""
        records = batch.records
        if not batch.are_plain_steps:
            return list(itertools.chain.from_iterable(map(self._add_record, records)))
        known_times = [time_s for time_s in times_of(records) if not math.isnan(time_s)]
        self.add_plain_steps(records[0], records[-1], len(records), max(known_times, default=0.0))
        return []

    def add_plain_steps(
        self, first: dict[str, Any], last: dict[str, Any], num_steps: int, latest_time_s: float
    ) -> None:
        """Add consecutive plain steps.

        Args:
            first: the first one, which may open an attempt and sets its first step.
            last: the last one, which sets the fields that depend on the latest record.
            num_steps: how many there are, at least two. Those in between change only the counters.
            latest_time_s: the latest time of any of them; 0 if they have none.
        """
        self._add_record(first)
        attempt = self._attempts[-1]
        self._counts["step"] += num_steps - 2
        attempt.num_records += num_steps - 2
        attempt.num_steps += num_steps - 2
        attempt.last_time = max(attempt.last_time or 0.0, latest_time_s)
        self._add_record(last)

    def restore(self, counts: dict[str, int], attempts: list[dict[str, Any]]) -> None:
        """Set the counts and the attempts' statistics that come from plain steps which were not added."""
        self._counts = dict(counts)
        for attempt, stored_attempt in zip(self._attempts, attempts, strict=False):
            for name, value in stored_attempt.items():
                setattr(attempt, name, value)

    @property
    def state(self) -> RunState:
        """The current state: running, finished, failed, interrupted, crashed or stale."""
        last = self._attempts[-1] if self._attempts else None
        if last is not None and last.end is not None:
            return state_at_end(last.end)
        return infer_state(last.start if last else None, read_heartbeat(self.folder.heartbeat))

    @property
    def attempts(self) -> list[Attempt]:
        """The attempts, one per process that recorded the run, in order."""
        return self._attempts

    @property
    def config(self) -> dict[str, Any]:
        """The config of the last attempt with all changes made to it later, secrets masked."""
        start = self._attempts[-1].start if self._attempts else {}
        changes = [record for record in self.latest("event", CONFIG_CHANGED) if time_of(record) >= time_of(start)]
        return _merge_field("config", [start, *changes])

    @property
    def summary(self) -> dict[str, Any]:
        """The results of the whole run that the training code stated, such as its best accuracy."""
        return _merge_field("summary", self.latest("event", SUMMARY))

    @property
    def step_metrics(self) -> dict[str, str]:
        """The metrics that the training code has given another metric as their x axis, and this metric."""
        step_metrics: dict[str, str] = {}
        for record in self.latest("event", METRIC_DEFINED):
            set_step_metric(step_metrics, record)
        return step_metrics

    @property
    def printed_metrics(self) -> set[str]:
        """The metrics that the training code only printed: their values were read from its output."""
        return {str(record.get("metric")) for record in self.latest("event", "read_from_output")}

    @property
    def facts(self) -> dict[str, Any]:
        """The fields of the last `start` record, and facts that an integration found later, such as `total_params`.

        A run that is started before the training code has a model cannot have its facts in the `start` record: they are
        in the event `instrumented`. Tags and notes, and `display_name`, are those that the training code stated last.
        """
        start = self._attempts[-1].start if self._attempts else {}
        started_at, facts = time_of(start), {}
        for record in self.latest("event", "instrumented"):
            if time_of(record) >= started_at:
                facts.update({name: value for name, value in record.items() if name not in _OBSERVATION_FIELDS})
        return {**facts, **start, **labels_of(start, self.latest("event", RUN_LABELED))}

    @property
    def duration_s(self) -> float | None:
        """The run time: from the first record to the last, without changes of the wall clock; None if unknown."""
        times = [(time_of(each.start), each.last_time) for each in self._attempts]
        finite_times = [time_s for pair in times for time_s in pair if time_s is not None and math.isfinite(time_s)]
        jumps_s = sum(attempt.clock_jumps_s for attempt in self._attempts)
        return (
            max(0.0, max(finite_times) - times[0][0] - jumps_s) if finite_times and math.isfinite(times[0][0]) else None
        )

    @property
    def before_first_record_s(self) -> float:
        """Seconds from the start of the program to the first record, which goodput counts and `duration_s` does not."""
        return self._goodput.lead_s

    @property
    def failure(self) -> Failure | None:
        """Why the last attempt failed; None if it did not."""
        if not self._attempts or not self.state.is_failure:
            return None
        last = self._attempts[-1]
        started_at = time_of(last.start)
        errors, logs, dumps = (
            [each for each in self.latest(kind) if time_of(each) >= started_at] for kind in ("error", "log", "dump")
        )
        failure = failure_of(last.end, errors, logs, last.last_step, dumps)
        if last.end is None and not failure.message and self.state is RunState.CRASHED:
            failure.message = self._crash_reason(last)
        return failure

    def _crash_reason(self, attempt: Attempt) -> str:
        """Return why an attempt crashed, if the kernel still knows it; looked up once."""
        if self._crash_reasons.get(attempt.index) is None:
            self._crash_reasons[attempt.index] = crash_reason(self.folder, attempt.start)
        return self._crash_reasons[attempt.index]

    @property
    def energy(self) -> Energy | None:
        """The energy that all attempts used; None if no counter could be read."""
        return total_energy([attempt.energy for attempt in self._attempts])

    @property
    def plugins(self) -> list[PluginUse]:
        """The training plugins of the last attempt."""
        start = self._attempts[-1].start if self._attempts else {}
        events_by_name = (self.latest("event", name) for name in (PLUGIN_EVENT, PLUGIN_SUMMARY_EVENT))
        starts, ends = (
            [record for record in records if time_of(record) >= time_of(start)] for records in events_by_name
        )
        return plugins_of(starts, ends)

    @property
    def counts(self) -> dict[str, int]:
        """The number of records of each kind."""
        return dict(self._counts)

    def latest(self, event: str, name: str | None = None) -> list[dict[str, Any]]:
        """Return the latest records of a kind: at most 1,000, or for events 1,000 of each name.

        Records of the kinds `step`, `system`, `profile`, `completions`, `media`, `histograms` and records of spans are
        not kept.

        Args:
            event: the kind.
            name: return only events with this name.
        """
        numbered_records = [
            entries for key, entries in self._latest.items() if key[0] == event and name in (None, key[1])
        ]
        return [record for _, record in sorted(itertools.chain(*numbered_records), key=lambda entry: entry[0])]

    def _add_latest(self, event: str, record: dict[str, Any]) -> None:
        key = (event, str(record.get("name")) if event == "event" else "")
        # Events are kept per name, so that a frequent event does not push out a rare one. Bound the number of names.
        if key not in self._latest and len(self._latest) >= _MAX_EVENT_NAMES:
            key = (event, "")
        self._latest.setdefault(key, deque(maxlen=_MAX_LATEST)).append((next(self._num_kept), record))

    @property
    def alerts(self) -> list[Alert]:
        """The alerts of the run, oldest first, each with its latest state."""
        return self._alerts.alerts()

    @property
    def num_alerts(self) -> int:
        """The number of alerts opened in total; `alerts` has the last 500 and all open ones."""
        return self._alerts.num_opened

    @property
    def open_alerts(self) -> list[Alert]:
        """Alerts that are not resolved, most severe first."""
        return self._alerts.open_alerts()

    @property
    def controls(self) -> dict[str, ControlState]:
        """The controls of the last attempt, with current values and the status of the last request."""
        start = self._attempts[-1].start if self._attempts else {}
        started_at = time_of(start)
        log_every = start.get("log_every")
        controls = {"log_every": ControlState(log_every, LOG_EVERY_MIN, LOG_EVERY_MAX, log_every)}
        events_by_name = (self.latest("event", name) for name in ("control_registered", "control_ack"))
        for record in [*itertools.chain(*events_by_name), *self.latest("control_change")]:
            if time_of(record) < started_at:
                continue
            if record["event"] == "control_change":
                controls.setdefault(str(record.get("name")), ControlState()).value = record.get("new")
            elif record.get("name") == "control_registered":
                controls[str(record.get("control"))] = ControlState(
                    record.get("value"), record.get("min"), record.get("max"), record.get("value")
                )
            elif record.get("name") == "control_ack":
                controls.setdefault(str(record.get("control")), ControlState()).last_answer = record.get("status")
        return controls

    @property
    def sampling(self) -> str | None:
        """How much of the loop is recorded now, as a sentence; None if everything is."""
        started_at = time_of(self._attempts[-1].start) if self._attempts else 0.0
        changes = [record for record in self.latest("event", "sampling_changed") if time_of(record) >= started_at]
        every = changes[-1].get("values_every") if changes else None
        if type(every) is not int or every < 2:
            return None
        limit = finite_or_none(changes[-1].get("max_overhead"))
        reason = f", to keep the cost of recording under {100 * limit:g} % of the step time" if limit else ""
        return f"loss and phases of one in {every} steps{reason}"

    @property
    def session_tag(self) -> str | None:
        """The tag of the session, the logical job that the run belongs to."""
        tags = self._values_set("session_tag", "one_logger_initialization")
        return str(tags[-1]) if tags else None

    @property
    def perf_tag(self) -> str | list[str] | None:
        """The tag of runs with comparable speed, or several: the last ones that were set."""
        tags = self._values_set("perf_tag", "update_training_telemetry_config")
        if not tags:
            return None
        return [str(tag) for tag in tags[-1]] if isinstance(tags[-1], list) else str(tags[-1])

    @property
    def perf_tags(self) -> list[str]:
        """Every `perf_tag` of the run, in the order of first use: an attempt may use another one than those before."""
        tags = self._values_set("perf_tag", "update_training_telemetry_config")
        each = (tag if isinstance(tag, list) else [tag] for tag in tags)
        return list(dict.fromkeys(map(str, itertools.chain(*each))))

    def _values_set(self, field: str, event_name: str) -> list[Any]:
        """Return the values of a field that `start` records and an event have set, in order."""
        numbered_records = (self._latest.get(key, ()) for key in (("start", ""), ("event", event_name)))
        records = sorted(itertools.chain(*numbered_records), key=lambda entry: entry[0])
        return [record[field] for _, record in records if record.get(field)]

    def open_spans(self) -> list[RecordedSpan]:
        """Return the spans that have started but not ended, oldest first."""
        return self._spans.open_spans()

    @property
    def span_groups(self) -> dict[str, SpanGroup]:
        """Totals of the outermost spans by name, each with the totals of its children."""
        return self._spans.roots

    @property
    def num_spans_not_grouped(self) -> int:
        """The number of spans in no group, because there were too many names."""
        return self._spans.num_not_grouped

    @property
    def phases(self) -> dict[str, float]:
        """Seconds spent in each phase of training loops: data, forward, backward, optimizer, iteration and others."""
        return dict(self._goodput.phase_s)

    @property
    def goodput(self) -> Goodput | None:
        """The goodput, or None if no iterations were marked."""
        # Plain steps are not added to the meter one by one, but they show that the attempt was still running.
        if self._attempts and self._attempts[-1].last_time is not None:
            self._goodput.extend_to(self._attempts[-1].last_time)
        return self._goodput.goodput(self.state, time.time())

    @property
    def num_lost_records(self) -> int:
        """The number of lost records that telemetry has counted."""
        return self._num_lost_records

    @property
    def num_media_lost(self) -> int:
        """About how many media records were not stored when the process of the last attempt was killed.

        That is what its last heartbeat stated. A process that ends by itself counts them as lost records instead.
        """
        last = self._attempts[-1] if self._attempts else None
        if last is None or self.state in {RunState.RUNNING, RunState.STALE}:
            return 0
        heartbeat, process = read_heartbeat(self.folder.heartbeat), writer_of(last.start, None)
        if heartbeat is None or process is None or heartbeat.process.at_home != process.at_home:
            return 0
        return max(heartbeat.media_pending, 0)

    def _add_record(self, record: dict[str, Any]) -> list[RecordedSpan]:
        event = record["event"]
        self._counts[event] = self._counts.get(event, 0) + 1
        if event == "start" or not self._attempts:
            self._attempts.append(Attempt(index=len(self._attempts), start=record if event == "start" else {}))
        attempt = self._attempts[-1]
        attempt.num_records += 1
        if jump_s := clock_jump_s(record):
            self._set_clock(attempt, jump_s)
        if (time_s := finite_or_none(record.get("time"))) is not None:
            attempt.last_time = max(time_s, attempt.last_time or 0.0)  # spans may have an earlier time
        if event == "step":
            _add_step(attempt, record)
        if event not in _KINDS_NOT_KEPT:
            self._add_latest(event, record)
        if event in {"start", "alert"}:
            self._alerts.add(record)
        if event == "energy":
            attempt.energy = parse_energy(record, attempt.start) or attempt.energy
        elif event == "end":
            attempt.end = record
        elif event == "telemetry_error" and record.get("kind") == "records_lost":
            number = record.get("num_records")
            self._num_lost_records += number if isinstance(number, int) else 0
        return self._add_to_timing(record)

    def _set_clock(self, attempt: Attempt, jump_s: float) -> None:
        """Shift the times of everything that has not ended to the new clock."""
        attempt.clock_jumps_s += jump_s
        if attempt.last_time is not None:
            attempt.last_time += jump_s
        self._alerts.set_clock(jump_s)
        self._spans.set_clock(jump_s)
        self._goodput.set_clock(jump_s)

    def _add_to_timing(self, record: dict[str, Any]) -> list[RecordedSpan]:
        """Add a record to the spans and the goodput; return the spans that it completes."""
        ended_spans: list[RecordedSpan] = []
        if record["event"] in SPAN_KINDS or record["event"] == "start":
            # The new attempt is already in the list; spans still open belong to the previous one.
            last_time = self._attempts[-2].last_time if len(self._attempts) > 1 else None
            if record["event"] == "start" and last_time is not None:
                self._goodput.extend_to(last_time)
            ended_spans = self._spans.add(record, last_time)
            for span in ended_spans:
                self._goodput.add_span(span)
        self._goodput.add(record)
        return ended_spans


def _merge_field(field: str, records: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the dicts in a field of some records as one; later values win."""
    values: dict[str, Any] = {}
    for record in records:
        if isinstance(record.get(field), dict):
            values |= record[field]
    return values


def _add_step(attempt: Attempt, record: dict[str, Any]) -> None:
    step = step_of(record)
    if step is None:
        return
    attempt.num_steps += 1
    num_before = record.get("window/iterations")  # a window record covers all its iterations
    # A window is recorded when it closes, possibly after a later step was logged.
    is_behind = num_before is not None and step < (attempt.last_step or 0)
    attempt.last_step = attempt.last_step if is_behind else step
    if attempt.first_step is None:
        attempt.first_step = step - (num_before - 1 if type(num_before) is int and num_before > 0 else 0)


def set_step_metric(step_metrics: dict[str, str], record: Mapping[str, Any]) -> None:
    """Set or remove the x axis of a metric, as an event `METRIC_DEFINED` states it."""
    metric, step_metric = record.get("metric"), record.get("step_metric")
    if isinstance(metric, str) and isinstance(step_metric, str):
        step_metrics[metric] = step_metric
    elif isinstance(metric, str):
        step_metrics.pop(metric, None)
