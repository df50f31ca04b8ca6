"""`tachograph.read`: everything a finished, running or crashed run recorded."""

from __future__ import annotations

import itertools
import math
import os
import time
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

import msgspec

from tachograph.exceptions import RunNotFoundError, nearest
from tachograph.journal._control_file import LOG_EVERY_MAX, LOG_EVERY_MIN
from tachograph.journal._folder import RunFolder, find_run
from tachograph.journal._follower import JournalFollower, read_records
from tachograph.journal._goodput import Goodput, GoodputMeter
from tachograph.journal._liveness import RunState, judge, read_heartbeat
from tachograph.journal._spans import SPAN_KINDS, Span, SpanBook, SpanGroup, in_order
from tachograph.records import METRIC_KINDS, finite, is_number

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pandas as pd

__all__ = ["Attempt", "ControlView", "MetricSummary", "RunHistory", "Series", "read"]

_MOST_KEPT = 1_000
_MOST_NAMES = 200
_NOT_METRICS = frozenset({"time", "global_step"})
_NOT_KEPT = {"step", "system", *SPAN_KINDS}


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


class MetricSummary(msgspec.Struct):
    """A metric in a few numbers; the extremes are over finite values."""

    kind: str = "step"
    """The kind of record it was first seen in."""
    count: int = 0
    last: float = math.nan
    last_step: int | None = None
    low: float = math.inf
    high: float = -math.inf
    num_not_finite: int = 0

    def add(self, value: float, step: int | None) -> None:
        """Take one more value."""
        self.count += 1
        self.last, self.last_step = value, step
        if not -math.inf < value < math.inf:
            self.num_not_finite += 1
            return
        self.low = min(self.low, value)
        self.high = max(self.high, value)

    def add_many(self, values: list[float]) -> None:
        """Take values of which another one is still to come, which then sets the latest."""
        self.count += len(values)
        finite = values
        if not -math.inf < sum(values) < math.inf:
            finite = [value for value in values if -math.inf < value < math.inf]
            self.num_not_finite += len(values) - len(finite)
        if finite:
            self.low = min(self.low, *finite)
            self.high = max(self.high, *finite)


class ControlView(msgspec.Struct):
    """A control as a reader sees it."""

    value: float | bool | None = None
    min: float | None = None
    max: float | None = None
    last_answer: str | None = None
    """What the trainer last said to a request: pending, applied, clamped, unchanged, superseded or rejected."""


class Series(NamedTuple):
    """One metric: as many entries in each array as the metric was recorded."""

    steps: npt.NDArray[np.int64]
    values: npt.NDArray[np.float64]
    times: npt.NDArray[np.float64]
    attempts: npt.NDArray[np.int64]


class Recorded(Protocol):
    """What has the path of a run's folder, as a `Run` has."""

    @property
    def path(self) -> str | None:
        """The folder, or None if nothing is recorded."""
        ...


class RunHistory:
    """A run on disk, read only as far as it is asked.

    Safe while the run is being written, on a read-only folder, and after a crash. `refresh` looks for what is new.

    Example:
        >>> history = tachograph.read("logs/greyjacket")
        >>> history.state, len(history.attempts)
        >>> steps, losses, *_ = history.series("train_loss")
    """

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self.name = folder.name
        self._follower = JournalFollower(folder.journal)
        self._attempts: list[Attempt] = []
        self._counts: dict[str, int] = {}
        self._metrics: dict[str, MetricSummary] = {}
        self._latest: dict[tuple[str, str], deque[tuple[int, dict[str, Any]]]] = {}
        self._num_kept = itertools.count()
        self._num_lost_records = 0
        self._num_restarts = 0
        self._spans = SpanBook()
        self._goodput = GoodputMeter()
        self.refresh()

    def __repr__(self) -> str:
        return f"RunHistory({self.name!r}, {self.state}, {self._counts.get('step', 0)} step records)"

    def refresh(self) -> int:
        """Take in what was appended since; return the number of new records."""
        num_new = 0
        while records := self._follower.poll_block():
            if self._follower.num_restarts != self._num_restarts:  # the file was replaced: begin again
                self._num_restarts = self._follower.num_restarts
                self._attempts, self._counts, self._metrics, self._latest = [], {}, {}, {}
                self._num_lost_records = 0
                self._spans, self._goodput = SpanBook(), GoodputMeter()
            for keys, group in itertools.groupby(records, key=tuple):
                alike = list(group)
                is_plain = len(alike) > 8 and keys[0] == "event" and "window/sec" not in keys
                if is_plain and all(record["event"] == "step" for record in alike):
                    self._take_steps(keys, alike)
                else:
                    for record in alike:
                        self._take(record)
                        self._take_time(record)
            num_new += len(records)
        return num_new

    @property
    def state(self) -> RunState:
        """Whether the run is running, finished, failed, crashed or stale, as of now."""
        last = self._attempts[-1] if self._attempts else None
        if last is not None and last.end is not None:
            return RunState.FINISHED if last.end.get("status") == "finished" else RunState.FAILED
        return judge(last.start if last else None, read_heartbeat(self.folder))

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

    @property
    def metrics(self) -> dict[str, MetricSummary]:
        """A summary of each metric that `series` knows, in order of appearance."""
        return self._metrics

    def latest(self, event: str, name: str | None = None) -> list[dict[str, Any]]:
        """Return the last records of a kind: at most 1,000, of events 1,000 of each name.

        Steps, samples of the system and spans are not kept.

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
    def controls(self) -> dict[str, ControlView]:
        """The controls of the last attempt, with the values in force and the trainer's last answers."""
        start = self._attempts[-1].start if self._attempts else {}
        began = _time(start)
        controls = {"log_every": ControlView(start.get("log_every"), LOG_EVERY_MIN, LOG_EVERY_MAX)}
        named = (self.latest("event", name) for name in ("control_registered", "control_ack"))
        for record in [*itertools.chain(*named), *self.latest("control_change")]:
            if _time(record) < began:
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

    def spans(self, name: str | None = None) -> list[Span]:
        """Return the spans, all or of one name: each after the one around it, and otherwise as they began."""
        book = SpanBook()
        found: list[Span] = []
        last_time = 0.0
        for record in read_records(self.folder.journal):
            found += book.take(record, last_time)
            last_time = max(last_time, _time(record))
        if self.state in {RunState.RUNNING, RunState.STALE}:
            for span in book.open_spans():
                span.status = "open"
                found.append(span)
        else:
            found += book.close(last_time)
        return [span for span in in_order(found) if name is None or span.name == name]

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

    @property
    def num_bad_lines(self) -> int:
        """Lines that could not be read, such as one that a dying process left half written."""
        return self._follower.num_bad_lines

    def records(self, event: str | None = None) -> Iterator[dict[str, Any]]:
        """Yield the records, all or of one kind, from the file as it is now."""
        for record in read_records(self.folder.journal):
            if event is None or record["event"] == event:
                yield record

    def series(self, name: str, *, overlap: Literal["keep", "latest"] = "keep") -> Series:
        """Return one metric as numpy arrays.

        Args:
            name: for example ``"train_loss"``, ``"val_loss"`` or ``"cpu_pct"``.
            overlap: after a resume some steps may be there twice. ``"keep"`` gives every point, with the attempt it
                belongs to; ``"latest"`` leaves out points that a later attempt overtook, as if it had been one run.

        Raises:
            KeyError: if nothing of that name was recorded.
        """
        import numpy as np

        steps: list[int] = []
        values: list[float] = []
        times: list[float] = []
        attempts: list[int] = []
        attempt, step = -1, 0
        for record in read_records(self.folder.journal):
            if record["event"] == "start":
                attempt += 1
                continue
            if record["event"] not in METRIC_KINDS:
                continue
            if type(record.get("global_step")) is int:
                step = record["global_step"]
            value: Any = record.get(name)
            if is_number(value):
                steps.append(step)
                values.append(value)
                times.append(float(record.get("time", "nan")))
                attempts.append(max(attempt, 0))
        if not values:
            raise KeyError(f"run {self.name!r} has no metric {name!r}{nearest(name, self._metrics)}")
        series = Series(
            steps=np.array(steps, dtype=np.int64),
            values=np.array(values, dtype=np.float64),
            times=np.array(times, dtype=np.float64),
            attempts=np.array(attempts, dtype=np.int64),
        )
        return _without_overtaken(series, self._attempts) if overlap == "latest" else series

    def to_pandas(self, event: str | None = None) -> pd.DataFrame:
        """Return the records, all or of one kind, as a wide DataFrame with an `attempt` column."""
        try:
            import pandas as pd
        except ImportError as error:
            raise ImportError("to_pandas() needs pandas: pip install 'tachograph[pandas]'") from error
        rows = []
        attempt = -1
        for record in read_records(self.folder.journal):
            attempt += record["event"] == "start"
            if event is None or record["event"] == event:
                rows.append({**record, "attempt": max(attempt, 0)})
        return pd.DataFrame(rows)

    def _take_time(self, record: dict[str, Any]) -> None:
        """Take what says where the time went."""
        if record["event"] in SPAN_KINDS or record["event"] == "start":
            last_time = self._attempts[-2].last_time if len(self._attempts) > 1 else None
            if record["event"] == "start" and last_time is not None:
                self._goodput.see(last_time)
            for span in self._spans.take(record, last_time):
                self._goodput.take_span(span)
        self._goodput.take(record)

    def _take(self, record: dict[str, Any]) -> None:
        event = record["event"]
        self._counts[event] = self._counts.get(event, 0) + 1
        if event == "start" or not self._attempts:
            self._attempts.append(Attempt(index=len(self._attempts), start=record if event == "start" else {}))
        attempt = self._attempts[-1]
        attempt.num_records += 1
        time_s = record.get("time")
        if isinstance(time_s, (int, float)):
            attempt.last_time = max(float(time_s), attempt.last_time or 0.0)  # a span may say when it really began
        if event in METRIC_KINDS:
            self._take_metrics(record, attempt)
        if event not in _NOT_KEPT:
            self._keep(event, record)
        if event == "end":
            attempt.end = record
        elif event == "telemetry_error" and record.get("kind") == "records_lost":
            number = record.get("num_records")
            self._num_lost_records += number if isinstance(number, int) else 0

    def _take_steps(self, keys: tuple[str, ...], records: list[dict[str, Any]]) -> None:
        """Take many step records with the same names, column by column."""
        *rest, last = records
        self._take(rest.pop(0))
        columns = dict(zip(keys, zip(*(record.values() for record in rest), strict=True), strict=True))
        steps = columns.get("global_step", ())
        if rest and all(type(step) is int for step in steps):
            self._counts["step"] += len(rest)
            attempt = self._attempts[-1]
            attempt.num_records += len(rest)
            attempt.num_steps += len(rest)
            for name, column in columns.items():
                if name not in _NOT_METRICS:
                    numbers = [value for value in column if is_number(value)]
                    if numbers:
                        self._summary(name, "step").add_many(numbers)
            rest = []
        for record in rest:
            self._take(record)
        self._take(last)  # sets what only the latest record says

    def _summary(self, name: str, kind: str) -> MetricSummary:
        summary = self._metrics.get(name)
        if summary is None:
            summary = self._metrics[name] = MetricSummary(kind=kind)
        return summary

    def _take_metrics(self, record: dict[str, Any], attempt: Attempt) -> None:
        step = record.get("global_step")
        if type(step) is not int:
            step = attempt.last_step
        elif record["event"] == "step":
            attempt.num_steps += 1
            num_before = record.get("window/iterations")  # a record of a window stands for all its iterations
            is_behind = num_before is not None and step < (attempt.last_step or 0)
            attempt.last_step = attempt.last_step if is_behind else step
            if attempt.first_step is None:
                attempt.first_step = step - (num_before - 1 if type(num_before) is int and num_before > 0 else 0)
        for name, value in record.items():
            if name not in _NOT_METRICS and is_number(value):
                self._summary(name, record["event"]).add(value, step)


def read(run: str | os.PathLike[str] | Recorded, log_dir: str | os.PathLike[str] | None = None) -> RunHistory:
    """Open a run by its folder, by its name inside `log_dir`, or the one that `init` returned.

    Raises:
        RunNotFoundError: if there is no run.

    Example:
        >>> losses = tachograph.read("logs/greyjacket").series("train_loss").values
    """
    place = run if isinstance(run, (str, os.PathLike)) else run.path
    if place is None:
        raise RunNotFoundError("the run is not recorded, so there is nothing to read")
    folder = find_run(place, log_dir)
    if not os.access(folder.journal, os.R_OK):
        raise RunNotFoundError(f"{folder.journal} cannot be read; check its permissions")
    return RunHistory(folder)


def _time(record: dict[str, Any]) -> float:
    return finite(record.get("time")) or 0.0


def _without_overtaken(series: Series, attempts: list[Attempt]) -> Series:
    """Drop the points of earlier attempts at steps that a later attempt went back to."""
    import numpy as np

    keep = np.ones(len(series.steps), dtype=bool)
    for attempt in attempts:
        if attempt.index > 0 and attempt.first_step is not None:
            keep &= ~((series.attempts < attempt.index) & (series.steps >= attempt.first_step))
    return Series(series.steps[keep], series.values[keep], series.times[keep], series.attempts[keep])
