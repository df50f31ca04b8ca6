"""What the records of a run say in all: attempts, counts, controls, tags, spans, goodput."""

from __future__ import annotations

import itertools
import math
import time
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import msgspec

from tachograph.journal._control_file import LOG_EVERY_MAX, LOG_EVERY_MIN
from tachograph.journal._folder import RunFolder
from tachograph.journal._liveness import RunState, infer_state, read_heartbeat, state_at_end
from tachograph.reader._alerts import Alert, AlertHistory
from tachograph.reader._goodput import Goodput, GoodputMeter
from tachograph.reader._spans import SPAN_KINDS, RecordedSpan, SpanGroup, SpanTreeBuilder
from tachograph.records import POINT_KINDS, finite_or_none, step_of

__all__ = ["RecordBatch", "Attempt", "ControlView", "RunDigest", "batch_records", "time_of", "times_of"]

_MOST_KEPT = 1_000
_MOST_NAMES = 200
_NOT_KEPT = {*POINT_KINDS, "completions", *SPAN_KINDS}


class Attempt(msgspec.Struct):
    """What one process recorded of a run; a resumed run has several."""

    index: int
    start: dict[str, Any]
    end: dict[str, Any] | None = None
    first_step: int | None = None
    last_step: int | None = None
    last_time: float | None = None
    num_records: int = 0
    num_steps: int = 0


class ControlView(msgspec.Struct):
    """A control as a reader sees it."""

    value: float | bool | None = None
    min: float | None = None
    max: float | None = None
    last_answer: str | None = None
    """What the trainer last said to a request: pending, applied, clamped, unchanged, superseded or rejected."""


class RecordBatch(NamedTuple):
    """Neighbours of one kind that have the same names in the same order."""

    names: tuple[str, ...]
    records: list[dict[str, Any]]
    are_plain_steps: bool
    """Whether they are many, and steps with a number, so that they can be taken by column."""

    @property
    def event(self) -> str:
        """Their kind."""
        event: str = self.records[0]["event"]
        return event


def batch_records(records: Iterable[dict[str, Any]]) -> Iterator[RecordBatch]:
    """Put neighbours that are alike together."""
    for key, group in itertools.groupby(records, key=lambda record: (record["event"], *record)):
        alike = list(group)
        is_plain = key[0] == "step" and len(alike) > 8 and "global_step" in key and "window/sec" not in key
        yield RecordBatch(key[1:], alike, is_plain and all(step_of(record) is not None for record in alike))


class RunDigest:
    """Takes the records of a run in order and knows what they say in all, but for the values of the metrics."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self.name = folder.name
        self._forget()

    def _forget(self) -> None:
        self._attempts: list[Attempt] = []
        self._counts: dict[str, int] = {}
        self._latest: dict[tuple[str, str], deque[tuple[int, dict[str, Any]]]] = {}
        self._num_kept = itertools.count()
        self._num_lost_records = 0
        self._alerts = AlertHistory()
        self._spans = SpanTreeBuilder()
        self._goodput = GoodputMeter()

    def take(self, alike: RecordBatch) -> list[RecordedSpan]:
        """Take neighbours that are alike; return the spans that they complete."""
        records = alike.records
        if not alike.are_plain_steps:
            return list(itertools.chain.from_iterable(map(self._take, records)))
        self._take(records[0])
        num_between = len(records) - 2
        self._counts["step"] += num_between
        self._attempts[-1].num_records += num_between
        self._attempts[-1].num_steps += num_between
        known = [time_s for time_s in times_of(records) if not math.isnan(time_s)]
        self._attempts[-1].last_time = max([self._attempts[-1].last_time or 0.0, *known])
        self._take(records[-1])  # sets what only the latest record says
        return []

    def restore(self, counts: dict[str, int], attempts: list[dict[str, Any]]) -> None:
        """Set what plain steps said that were not taken: how many records there are, how far each attempt came."""
        self._counts = dict(counts)
        for attempt, known in zip(self._attempts, attempts, strict=False):
            for name, value in known.items():
                setattr(attempt, name, value)

    @property
    def state(self) -> RunState:
        """Whether the run is running, finished, failed, crashed or stale, as of now."""
        last = self._attempts[-1] if self._attempts else None
        if last is not None and last.end is not None:
            return state_at_end(last.end)
        return infer_state(last.start if last else None, read_heartbeat(self.folder.heartbeat))

    @property
    def attempts(self) -> list[Attempt]:
        """The processes that recorded this run, in order."""
        return self._attempts

    @property
    def config(self) -> dict[str, Any]:
        """The config snapshot of the last attempt, secrets masked."""
        config = self._attempts[-1].start.get("config") if self._attempts else None
        return config if isinstance(config, dict) else {}

    @property
    def counts(self) -> dict[str, int]:
        """How many records there are of each kind."""
        return dict(self._counts)

    def latest(self, event: str, name: str | None = None) -> list[dict[str, Any]]:
        """Return the last records of a kind: at most 1,000, of events 1,000 of each name.

        Steps, samples of the system, profiles, spans and completions are not kept.

        Args:
            event: the kind.
            name: of events, only those of this name.
        """
        kept = [kept for key, kept in self._latest.items() if key[0] == event and name in (None, key[1])]
        return [record for _, record in sorted(itertools.chain(*kept), key=lambda numbered: numbered[0])]

    def _keep(self, event: str, record: dict[str, Any]) -> None:
        key = (event, str(record.get("name")) if event == "event" else "")
        if key not in self._latest and len(self._latest) >= _MOST_NAMES:
            key = (event, "")
        self._latest.setdefault(key, deque(maxlen=_MOST_KEPT)).append((next(self._num_kept), record))

    @property
    def alerts(self) -> list[Alert]:
        """What rules found wrong with the run, oldest first: each fault once, with how it went on and ended."""
        return self._alerts.alerts()

    @property
    def num_alerts(self) -> int:
        """How many alerts there were; `alerts` has the last 500, and those that are open."""
        return self._alerts.num_opened

    @property
    def open_alerts(self) -> list[Alert]:
        """Alerts that are not resolved, the worst first."""
        return self._alerts.open_alerts()

    @property
    def controls(self) -> dict[str, ControlView]:
        """The controls of the last attempt, with the values in force and the trainer's last answers."""
        start = self._attempts[-1].start if self._attempts else {}
        began = time_of(start)
        controls = {"log_every": ControlView(start.get("log_every"), LOG_EVERY_MIN, LOG_EVERY_MAX)}
        named = (self.latest("event", name) for name in ("control_registered", "control_ack"))
        for record in [*itertools.chain(*named), *self.latest("control_change")]:
            if time_of(record) < began:
                continue
            if record["event"] == "control_change":
                controls.setdefault(str(record.get("name")), ControlView()).value = record.get("new")
            elif record.get("name") == "control_registered":
                controls[str(record.get("control"))] = ControlView(
                    record.get("value"), record.get("min"), record.get("max")
                )
            elif record.get("name") == "control_ack":
                controls.setdefault(str(record.get("control")), ControlView()).last_answer = record.get("status")
        return controls

    @property
    def session_tag(self) -> str | None:
        """The logical job that the run belongs to."""
        tag: str | None = self._tag("session_tag")
        return tag

    @property
    def perf_tag(self) -> str | list[str] | None:
        """What its speed may be compared with, as of the last attempt."""
        for record in reversed(self.latest("event", "update_training_telemetry_config")):
            if record.get("perf_tag"):
                return self._as_tag(record["perf_tag"])
        return self._as_tag(self._tag("perf_tag"))

    @staticmethod
    def _as_tag(tag: Any) -> str | list[str] | None:
        return [str(item) for item in tag] if isinstance(tag, list) else str(tag) if tag else None

    def _tag(self, name: str) -> Any:
        return self._attempts[-1].start.get(name) if self._attempts else None

    def open_spans(self) -> list[RecordedSpan]:
        """Return the spans that were begun and have not ended, oldest first."""
        return self._spans.open_spans()

    @property
    def span_groups(self) -> dict[str, SpanGroup]:
        """The outermost spans by name, each with those inside, added up."""
        return self._spans.roots

    @property
    def num_spans_not_grouped(self) -> int:
        """Spans that are in no group, because there were too many names."""
        return self._spans.num_not_grouped

    @property
    def phases(self) -> dict[str, float]:
        """Seconds of the training loops by phase: data, forward, backward, optimizer, iteration, and so on."""
        return dict(self._goodput.phase_s)

    @property
    def goodput(self) -> Goodput | None:
        """Where the time went; None if no iterations were marked."""
        if self._attempts and self._attempts[-1].last_time is not None:
            self._goodput.see(self._attempts[-1].last_time)
        return self._goodput.goodput(self.state, time.time())

    @property
    def num_lost_records(self) -> int:
        """Records that are known to be missing, as telemetry itself counted them."""
        return self._num_lost_records

    def _take(self, record: dict[str, Any]) -> list[RecordedSpan]:
        event = record["event"]
        self._counts[event] = self._counts.get(event, 0) + 1
        if event == "start" or not self._attempts:
            self._attempts.append(Attempt(index=len(self._attempts), start=record if event == "start" else {}))
        attempt = self._attempts[-1]
        attempt.num_records += 1
        if (time_s := finite_or_none(record.get("time"))) is not None:
            attempt.last_time = max(time_s, attempt.last_time or 0.0)  # a span may say when it really began
        if event == "step":
            _take_step(attempt, record)
        if event not in _NOT_KEPT:
            self._keep(event, record)
        if event in {"start", "alert"}:
            self._alerts.add(record)
        if event == "end":
            attempt.end = record
        elif event == "telemetry_error" and record.get("kind") == "records_lost":
            number = record.get("num_records")
            self._num_lost_records += number if isinstance(number, int) else 0
        return self._take_time(record)

    def _take_time(self, record: dict[str, Any]) -> list[RecordedSpan]:
        """Take what says where the time went."""
        ended: list[RecordedSpan] = []
        if record["event"] in SPAN_KINDS or record["event"] == "start":
            last_time = self._attempts[-2].last_time if len(self._attempts) > 1 else None
            if record["event"] == "start" and last_time is not None:
                self._goodput.see(last_time)
            ended = self._spans.take(record, last_time)
            for span in ended:
                self._goodput.take_span(span)
        self._goodput.take(record)
        return ended


def _take_step(attempt: Attempt, record: dict[str, Any]) -> None:
    step = step_of(record)
    if step is None:
        return
    attempt.num_steps += 1
    num_before = record.get("window/iterations")  # a record of a window stands for all its iterations
    is_behind = num_before is not None and step < (attempt.last_step or 0)
    attempt.last_step = attempt.last_step if is_behind else step
    if attempt.first_step is None:
        attempt.first_step = step - (num_before - 1 if type(num_before) is int and num_before > 0 else 0)


def times_of(records: list[dict[str, Any]]) -> list[float]:
    """Return when each record was made; NaN where it does not say."""
    times = [record.get("time") for record in records]
    if set(map(type, times)) == {float} and math.isfinite(sum(times)):  # type: ignore[arg-type]
        return times  # type: ignore[return-value]
    return [math.nan if (time_s := finite_or_none(value)) is None else time_s for value in times]


def time_of(record: dict[str, Any]) -> float:
    """Return when a record was made; 0 if it does not say."""
    return finite_or_none(record.get("time")) or 0.0
