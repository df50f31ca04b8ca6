"""A run in the store: the digest of its records, and its metrics as columns.

Columns come from two places: *segments*, immutable files that each cover a range of journal bytes, and the *tail*, in
memory, which covers the rest. `refresh` follows the journal into the tail. When the tail covers enough bytes, `_commit`
writes it as the next segment and starts an empty tail. A query runs over all segments and the tail in order.

Plain points are only in columns. All other records (*kept* records: starts, spans, events, alerts, windows …) are also
stored in the segments as JSON lines; opening a run replays them into the digest, without reading the journal.

Segments are a cache and may disappear or be damaged at any time. Then the run is reopened with the remaining ones and
the journal is read again from there.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import math
import threading
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import msgspec
import numpy as np

from tachograph._base.typed import convert
from tachograph.journal import JournalFollower, RunFolder, journal_size, open_journal
from tachograph.reader import (
    HistogramLocation,
    MediaIndex,
    MediaLocation,
    MetricSummary,
    RecordBatch,
    RecordedSpan,
    RunDigest,
    accepts_requests,
    batch_records,
    cover_windows,
)
from tachograph.records import POINT_KINDS, decode, encode, finite_or_none
from tachograph.store._aggregates import (
    MetricAggregates,
    aggregate_series,
    attempt_points,
    series_points,
    sort_points,
    value_at,
    with_window_extremes,
)
from tachograph.store._axes import SourceOnMetric, values_by_step
from tachograph.store._axis_sources import AxisKnots, AxisSources, add_positions, find_knots, join_training_time
from tachograph.store._chart_lines import ColumnSource, Line, Mark, View, build_marks, iter_points
from tachograph.store._columns import AnyAxis, Axis, Column, Floats, Integers, MetricAxis
from tachograph.store._completions import CompletionIndex, replace_large_records, take_media_place
from tachograph.store._knots_budget import KnotsBudget
from tachograph.store._segment import AttemptStats, Segment, SegmentError, fingerprint, segment_path, write_segment
from tachograph.store._segment_folder import SegmentFolder
from tachograph.store._span_table import SpanTable, SpanView
from tachograph.store._step_decoder import LinesPiece, StepColumns, StepDecoder, split_lines
from tachograph.store._tail import Tail
from tachograph.store._windows import build_lines_with_extremes

__all__ = ["StoredRun", "kind_of_stream"]

_SEGMENT_BYTES = 32 << 20
_MIN_SEGMENT_BYTES = 1 << 20
_MAX_MAPPED_BYTES = 16 << 20
"""If segments are larger than this in total, their pages are released after each query."""
_MAX_CACHED_ROWS = 10_000
_MAX_TRIES = 3
_SLICE_S = 0.1
_PAUSE_S = 0.001
_knots_budget = KnotsBudget()
Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def _query(
    method: Callable[Concatenate[StoredRun, Arguments], Result],
) -> Callable[Concatenate[StoredRun, Arguments], Result]:
    """Make a method a query over the columns of a run.

    If a segment is damaged, the segments are deleted, the journal is read again and the query is repeated. The query
    raises `SegmentError` if the segments are damaged again and again.
    """

    @functools.wraps(method)
    def run_query(run: StoredRun, /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        return run._run_query(lambda: method(run, *args, **kwargs))

    return run_query


class StoredRun:
    """Follows the journal of a run into columns. Thread-safe; several processes may follow one run."""

    def __init__(self, folder: RunFolder, *, segment_bytes: int = _SEGMENT_BYTES) -> None:
        self.folder = folder
        self.id = folder.name
        """The id of the run in a `Store`."""
        self.lock = threading.RLock()
        """Held while the run is read or refreshed."""
        self._segment_bytes = segment_bytes
        self._cache = SegmentFolder(folder)
        self._num_replacements = 0
        self._is_behind = True
        self._open()

    def _open(self) -> None:
        """Load the chain of valid segments, then start an empty tail behind it."""
        self.digest = RunDigest(self.folder)
        self.completions = CompletionIndex()
        self.media = MediaIndex()
        self._spans = SpanTable()
        self._segments: list[Segment] = []
        self._series: dict[str, list[str]] = {}
        self._cached_sources: tuple[object, AxisSources] | None = None
        self._cached_knots: tuple[object, AxisKnots] | None = None
        self._generation = ""
        end = 0
        while True:
            try:
                segment = Segment(segment_path(self._cache.path, end), self.folder.journal, end)
            except SegmentError:
                break
            self._load_segment(segment)
            end = segment.footer.end
        self._start_tail(end)
        self._follower = JournalFollower(self.folder.journal, end)
        self._decoder = StepDecoder()
        self._num_restarts = 0
        self._next_commit = end + self._segment_bytes

    def _load_segment(self, segment: Segment) -> None:
        footer = segment.footer
        for line in segment.kept_records().split(b"\n"):
            if line:
                self._replay(decode(line), footer.attempts)
        self.digest.restore(footer.counts, [msgspec.structs.asdict(attempt) for attempt in footer.attempts])
        self._segments.append(segment)
        for stream, name in segment.series_keys:
            self._register_series(stream, name)

    def _start_tail(self, start: int, num_bad_before: int = 0) -> None:
        footer = self._segments[-1].footer if self._segments else None
        epoch = math.nan if footer is None or footer.epoch is None else footer.epoch
        self._tail = Tail(epoch, footer.step if footer else None)
        self._tail_start = start
        self._num_bad_before = num_bad_before
        self._kept_records: list[bytes] = []

    @property
    def generation(self) -> str:
        """Identifies the journal; changes if the file was replaced, which invalidates everything read before."""
        if not self._generation:
            with contextlib.suppress(OSError), open_journal(self.folder.journal) as file:
                line = file.readline(64 << 10)
                self._generation = hashlib.blake2b(line, digest_size=6).hexdigest() if line.endswith(b"\n") else ""
        return (self._generation or "0") + (f"{self._num_replacements:x}" if self._num_replacements else "")

    @property
    def version(self) -> str:
        """Changes whenever there are new records."""
        return f"{self.generation}-{self._follower.offset}"

    @property
    def indexed_share(self) -> float:
        """The share of the journal read so far; 1.0 once `refresh` has reached the end."""
        if not self._is_behind:
            return 1.0
        try:
            size = journal_size(self.folder.journal)
        except OSError:
            return 1.0
        return min(1.0, self._follower.offset / size) if size else 1.0

    @property
    def num_bytes_read(self) -> int:
        """How much of the journal was read so far."""
        return self._follower.offset

    @property
    def started_at(self) -> float:
        """The start time of the run in unix time, or 0 if it is unknown."""
        return finite_or_none(self.digest.attempts[0].start.get("time")) or 0.0 if self.digest.attempts else 0.0

    @property
    def first_step(self) -> int:
        """The first recorded step, or 0 if there is none."""
        return next((each.first_step for each in self.digest.attempts if each.first_step is not None), 0)

    @property
    def num_bad_lines(self) -> int:
        """The number of invalid lines, such as one that a dying process left incomplete."""
        return sum(segment.footer.num_bad_lines for segment in self._segments) + self._num_bad_in_tail

    @property
    def _num_bad_in_tail(self) -> int:
        return self._follower.num_bad_lines - self._num_bad_before

    @property
    def resource_usage(self) -> tuple[int, int]:
        """About how many bytes of memory and how many open files the run holds."""
        segments = self._segments
        kept_record_bytes = sum(segment.footer.kept_records[1] for segment in segments)
        return (1 << 16) + kept_record_bytes + self._follower.offset - self._tail_start, len(segments)

    def refresh(self, max_s: float = math.inf) -> bool:
        """Read appended records for at most `max_s`; return whether there were any."""
        with self.lock:
            deadline_s = time.monotonic() + max_s
            version_before = self.version
            while True:
                lines = self._follower.poll_lines()
                if self._follower.num_restarts != self._num_restarts:  # the file was replaced or truncated
                    self._restart()
                    continue
                self._add_lines(lines, self._follower.offset - len(lines))
                if self._is_time_to_commit(is_end=not lines):
                    self._commit()
                self._is_behind = bool(lines)
                if not lines or time.monotonic() > deadline_s:
                    return self.version != version_before

    def refresh_in_slices(self) -> None:
        """Read all appended records; other threads can use the run in between."""
        while True:
            self.refresh(_SLICE_S)
            if not self._is_behind:
                return
            time.sleep(_PAUSE_S)  # else this thread would lock the run again before a waiting one does

    def _restart(self) -> None:
        # A replaced journal may start with the same line; the counter still changes the generation.
        self._num_replacements = (self._num_replacements + 1) % 4096
        self._cache.clear()
        self._open()

    def _add_lines(self, lines: bytes, start: int) -> None:
        columns = self._decoder.decode_block(lines) if lines else None
        if columns is not None:
            self._add_steps(columns)
        else:
            for piece in split_lines(lines):
                self._add_piece(piece, lines[piece.first : piece.end], start + piece.first)
        for stream, name in self._tail.series_keys:
            self._register_series(stream, name)

    def _add_piece(self, piece: LinesPiece, lines: bytes, start: int) -> None:
        columns = self._decoder.decode(piece, lines)
        if columns is not None:
            self._add_steps(columns)
            return
        records = self._follower.parse(lines, start)
        if piece.num_steps:
            self._decoder.learn(records)
        self._add_records(replace_large_records(lines, start, records))

    def _add_steps(self, columns: StepColumns) -> None:
        if not self.digest.attempts:
            self._kept_records.append(encode(columns.first))  # as below
        self.digest.add_plain_steps(columns.first, columns.last, len(columns.steps), float(columns.times.max()))
        self._tail.add_steps(columns, len(self.digest.attempts) - 1)

    def _add_records(self, records: list[dict[str, Any]]) -> None:
        for batch in batch_records(records):
            is_plain = batch.event in POINT_KINDS and "window/sec" not in batch.names
            if batch.event == "start":
                self._tail.begin_attempt()
            # Without a `start` record, keep the first plain point: replaying it opens the attempt.
            if not is_plain or not self.digest.attempts:
                self._kept_records += map(encode, batch.records[:1] if is_plain else batch.records)
            self._add_to_digest(batch)
            self._tail.add(batch, len(self.digest.attempts) - 1)

    def _replay(self, record: dict[str, Any], stats: list[AttemptStats]) -> None:
        """Add a kept record of a segment; before a `start`, restore the last time of the previous attempt."""
        attempts = self.digest.attempts
        if record["event"] == "start" and attempts:
            attempts[-1].last_time = stats[len(attempts) - 1].last_time
        for batch in batch_records([record]):
            self._add_to_digest(batch)

    def _add_to_digest(self, batch: RecordBatch) -> None:
        if batch.event in {"event", "completions"}:
            for record in batch.records:
                location = take_media_place(record)
                if location is not None:
                    self.media.add_location(location)
        for span in self.digest.add(batch):
            self._spans.add(span)
        if batch.event == "completions":
            for stub in batch.records:
                self.completions.add(stub)
        elif batch.event in {"media", "histograms"}:
            self._add_media(batch)

    def _add_media(self, batch: RecordBatch) -> None:
        for stub in batch.records:
            if not stub.get("place"):  # the journal was replaced while it was read
                continue
            if batch.event == "media":
                self.media.add(convert(stub["place"], MediaLocation))
            else:
                self.media.add_histograms(convert(stub["place"], HistogramLocation))

    def _register_series(self, stream: str, name: str) -> None:
        streams = self._series.setdefault(name, [])
        if stream not in streams:
            streams.append(stream)

    def _is_time_to_commit(self, *, is_end: bool) -> bool:
        if self._follower.offset >= self._next_commit:
            return True
        # An ended run gets no more records: commit its tail early, so that the next reader need not parse it.
        is_large_enough = self._follower.offset - self._tail_start >= _MIN_SEGMENT_BYTES
        has_failed = self._next_commit > self._tail_start + self._segment_bytes  # to write this tail
        return is_end and is_large_enough and not has_failed and not accepts_requests(self.digest)

    def _commit(self) -> None:
        """Write the tail as a segment, unless another reader did so first or it cannot be written."""
        start, end = self._tail_start, self._follower.offset
        # Set before writing: after a failure, wait for another segment's worth of records before trying again.
        self._next_commit = end + self._segment_bytes
        attempts = [
            AttemptStats(item.first_step, item.last_step, item.last_time, item.num_records, item.num_steps)
            for item in self.digest.attempts
        ]
        try:
            path = segment_path(self._cache.ensure_writable(), start)
            is_written = write_segment(
                path,
                self._cache.below,
                self._tail,
                b"\n".join(self._kept_records),
                start=start,
                end=end,
                fingerprint=fingerprint(self.folder.journal, end),
                counts=self.digest.counts,
                attempts=attempts,
                num_bad_lines=self._num_bad_in_tail,
            )
        except OSError:  # the tail stays in memory
            return
        try:
            segment = Segment(path, self.folder.journal, start)
        except SegmentError:  # the file written by another reader is invalid
            _remove(path)
            return
        if is_written:
            self._segments.append(segment)
            self._start_tail(end, self._follower.num_bad_lines)
        else:
            # The segment of the other reader may end elsewhere than our tail: reload the chain and follow from its end.
            self._open()

    def _run_query(self, query: Callable[[], Result]) -> Result:
        """Run a query over the columns; see `_query`."""
        with self.lock:
            try:
                for _ in range(_MAX_TRIES):
                    self._poll_changes()
                    try:
                        result = query()
                    except SegmentError:
                        for segment in self._segments:
                            _remove(segment.path)
                        self._open()
                        self.refresh()
                        continue
                    if not self._poll_changes():  # nothing was changed while it was read
                        return result
                raise SegmentError(f"the segments in {self._cache.path} are changed all the time")
            finally:
                # Mapped pages count as memory of this process until they are released.
                if sum(segment.size_bytes for segment in self._segments) > _MAX_MAPPED_BYTES:
                    self._release_pages()

    def release(self) -> None:
        """Release memory that is cheap to fill again; a reader of hundreds of runs would keep it for each of them."""
        with self.lock:
            self._release_pages()
            if sum(self.cursor().values()) > _MAX_CACHED_ROWS:
                self._cached_sources = None

    def _release_pages(self) -> None:
        for segment in self._segments:
            segment.release_pages()

    def _poll_changes(self) -> bool:
        """Return whether a source was changed since the last call; asks all of them."""
        changes = [source.is_changed() for source in self._sources]
        return any(changes)

    @property
    def _sources(self) -> list[ColumnSource]:
        return [*self._segments, self._tail]

    def _sources_on(self, axis: AnyAxis) -> AxisSources:
        """Return the sources with positions on an axis; the same as before until there are new rows or another axis."""
        if axis == "step" or axis == "time":  # noqa: PLR1714 - mypy understands it
            return add_positions(self._sources, find_knots(self._sources, axis, self.digest))
        state = self._axis_state(axis)
        if self._cached_sources is None or self._cached_sources[0] != state:
            if isinstance(axis, MetricAxis):
                values = values_by_step(self._sources, self._series.get(axis.name, []), axis.name)
                sources: list[ColumnSource] = [SourceOnMetric(each, axis.name, values) for each in self._sources]
                problem = None if axis.name in self._series else f"no metric {axis.name!r} in this run"
                self._cached_sources = (state, AxisSources(sources, "position", problem))
            else:
                self._cached_sources = (state, add_positions(self._sources, self._knots_on(axis)))
        return self._cached_sources[1]

    def _axis_state(self, axis: AnyAxis) -> object:
        """Return a value that changes whenever positions on an axis may change."""
        return axis, self.version, sum(source.num_changes for source in self._sources)

    def _knots_on(self, axis: Axis) -> AxisKnots:
        """Return the knots of an axis; the same as before until there are new rows, if there is memory to keep them."""
        state = self._axis_state(axis)
        if self._cached_knots is not None and self._cached_knots[0] == state:
            _knots_budget.mark_used(self)
            return self._cached_knots[1]
        axis_knots = find_knots(self._sources, axis, self.digest)
        self._cached_knots = (state, axis_knots) if _knots_budget.reserve(self, axis_knots.knots) else None
        return axis_knots

    def drop_knots(self) -> None:
        """Forget the knots of the last axis; the next query computes them again."""
        self._cached_knots = None

    def axis_problem(self, axis: AnyAxis) -> str | None:
        """Return why the run has no positions on an axis; None if it has."""
        return None if axis in {"step", "time", "epoch"} else self._computed_axis_problem(axis)

    @_query
    def _computed_axis_problem(self, axis: AnyAxis) -> str | None:
        return self._sources_on(axis).problem

    @property
    def metric_names(self) -> list[str]:
        """The names of all metrics, in order of appearance."""
        return list(self._series)

    def metrics(self) -> dict[str, MetricSummary]:
        """Return a summary of every metric."""
        with self.lock:
            summaries = {name: MetricSummary(kind=kind_of_stream(streams[0])) for name, streams in self._series.items()}
            for source in self._sources:
                stats_of_names = [
                    (stats, name) for stream, name in source.series_keys if (stats := source.stats(stream, name))
                ]
                for stats, name in sorted(stats_of_names, key=lambda item: item[0].order):
                    summary = summaries[name]
                    summary.count += stats.num_values + stats.num_marks
                    summary.num_not_finite += stats.num_marks
                    summary.low, summary.high = min(summary.low, stats.low), max(summary.high, stats.high)
                    summary.last, summary.last_step = stats.last, stats.last_step
            return cover_windows(summaries)

    @_query
    def aggregates(self) -> dict[str, MetricAggregates]:
        """Return the aggregates of every metric, without points that a later attempt repeated."""
        attempts = self.digest.attempts
        metrics = (
            (name, aggregate_series(self._sources, series, name, attempts)) for name, series in self._series.items()
        )
        return with_window_extremes({name: aggregates for name, aggregates in metrics if aggregates is not None})

    @_query
    def values_at(self, metric_steps: Collection[tuple[str, int]]) -> dict[tuple[str, int], float | None]:
        """Return the values of metrics at steps: at the nearest recorded steps before, or None before the first.

        Points that a later attempt repeated are left out.
        """
        points: dict[str, Any] = {}
        for name in dict.fromkeys(name for name, _ in metric_steps):
            points[name] = series_points(self._sources, self._series.get(name, []), name, self.digest.attempts)
        return {
            (name, step): None if points[name] is None else value_at(points[name], step) for name, step in metric_steps
        }

    @_query
    def latest_points(self, name: str) -> tuple[Integers | Floats, Floats] | None:
        """Return step and value of each point of a metric, except points that a later attempt repeated; None if none.

        NaN and infinities are included. The arrays belong to the caller.
        """
        return series_points(self._sources, self._series.get(name, []), name, self.digest.attempts)

    @_query
    def recorded_points(self, name: str) -> list[tuple[str, int, Integers, Floats]]:
        """Return stream, attempt, steps and values of each line of a metric, with all points, also repeated ones."""
        lines = []
        for stream in self._series.get(name, []):
            for attempt in self.digest.attempts:
                points = attempt_points(self._sources, stream, name, attempt.index)
                if points is not None:
                    lines.append((stream, attempt.index, *points))
        return lines

    @_query
    def training_times(self) -> tuple[Floats, Floats] | None:
        """Return steps and the seconds of training until each of them, without work that a later attempt repeated.

        None if the run has no time per step.
        """
        knots = join_training_time(self._knots_on("training_time"))
        return None if knots is None else (knots.steps, knots.positions)

    def last_value(self, name: str) -> float | None:
        """Return the last value of a metric, or None."""
        with self.lock:
            for source in reversed(self._sources):
                candidates = [stats for stream in self._series.get(name, []) if (stats := source.stats(stream, name))]
                if candidates:
                    return max(candidates, key=lambda stats: stats.order).last
            return None

    def cursor(self) -> dict[str, int]:
        """Return the number of rows of each stream."""
        with self.lock:
            names = dict.fromkeys(stream for source in self._sources for stream in source.streams)
            return {name: sum(source.num_rows(name) for source in self._sources) for name in names}

    @_query
    def series(
        self,
        name: str,
        *,
        axis: AnyAxis = "step",
        low: float | None = None,
        high: float | None = None,
        num_points: int = 2_000,
        after: dict[str, int] | None = None,
    ) -> tuple[list[Line], list[Mark]]:
        """Return the lines and marks of a metric in a view.

        Args:
            name: the metric.
            axis: the axis of the chart.
            low: start of the view; None for the beginning.
            high: end of the view; None for the end.
            num_points: the approximate number of points per line.
            after: the cursor of an earlier call; only newer rows are returned.
        """
        lines: list[Line] = []
        marks: list[Mark] = []
        sources, column, problem = self._sources_on(axis)
        for stream in self._series.get(name, []) if problem is None else []:
            view = View(column, low, high, num_points, (after or {}).get(stream, 0), isinstance(axis, MetricAxis))
            lines += build_lines_with_extremes(sources, stream, name, view)
            marks += build_marks(sources, stream, name, view)
        return lines, marks

    def points(
        self, names: list[str], *, axis: Axis, low: float | None, high: float | None
    ) -> Iterator[list[tuple[Any, ...]]]:
        """Yield all points of some metrics in blocks: name, attempt, step, time, epoch (NaN if unknown) and value.

        On an axis that is computed and not the epoch, the position precedes the value.

        Raises:
            SegmentError: if a segment is damaged while its points are read. Points already yielded are correct.
        """
        for name, source, stream, column in self._parts_of(names, axis):
            with self.lock:
                source.is_changed()
                num_changes, series, rows = source.num_changes, source.series_part(stream, name), source.rows(stream)
            assert series is not None  # noqa: S101 - found above
            for block in iter_points(name, rows, series, column, low, high):
                with self.lock:
                    source.is_changed()
                    if source.num_changes != num_changes:  # another query may have noticed it first
                        raise SegmentError(f"a segment of {self.folder.name!r} was changed while it was exported")
                yield block

    @_query
    def _parts_of(self, names: list[str], axis: Axis) -> list[tuple[str, ColumnSource, str, Column]]:
        """Return name, source, stream and column of positions of each part of some metrics; verify the checksums."""
        sources, column, problem = self._sources_on(axis)
        return [
            (name, source, stream, column)
            for name in names
            for source in (sources if problem is None else [])
            for stream in self._series.get(name, [])
            if source.series_part(stream, name) is not None and source.rows(stream)  # verifies their checksums
        ]

    @_query
    def num_unplaced(self, name: str, axis: MetricAxis) -> int:
        """Return how many points of a metric have no position on an axis."""
        sources = self._sources_on(axis).sources
        total = 0
        for stream in self._series.get(name, []):
            for source in sources:
                part = source.series_part(stream, name) if source.num_rows(stream) else None
                if part is not None:
                    has_none = np.isnan(source.rows(stream).column("position"))
                    total += int(has_none[part.rows_at(np.arange(len(part.values)))].sum())
                    total += int(has_none[part.mark_rows].sum())
        return total

    @_query
    def goes_back(self, name: str, axis: MetricAxis) -> bool:
        """Return whether a metric goes both up and down on an axis, so that it has several values at one position."""
        sources, column, problem = self._sources_on(axis)
        streams = self._series.get(name, []) if problem is None else []
        points = series_points(sources, streams, name, self.digest.attempts, column)
        if points is None:
            return False
        x = np.asarray(points[0], dtype=np.float64)
        changes = np.diff(x[np.isfinite(x)])
        return bool((changes < 0).any() and (changes > 0).any())

    @_query
    def points_on(self, name: str, *, axis: AnyAxis, low: float | None, high: float | None) -> tuple[Floats, Floats]:
        """Return position and value of the finite points of a metric in a range, sorted, one for each position.

        Points that a later attempt repeated are left out, and of several at one position all but the last.
        """
        sources, column, problem = self._sources_on(axis)
        streams = self._series.get(name, []) if problem is None else []
        points = series_points(sources, streams, name, self.digest.attempts, column)
        return (np.empty(0), np.empty(0)) if points is None else sort_points(*points, low, high)

    def spans(self, low: float | None, high: float | None, *, num_points: int, max_spans: int) -> SpanView:
        """Return the spans between two times; at most `max_spans` are returned individually."""
        with self.lock:
            return self._spans.view(self._unfinished_spans(), low, high, num_points=num_points, max_spans=max_spans)

    def _unfinished_spans(self) -> list[RecordedSpan]:
        """Return the spans without an end: still open, or interrupted because the process died."""
        spans = [msgspec.structs.replace(span, status="open") for span in self.digest.open_spans()]
        if not accepts_requests(self.digest):
            last_time = self.digest.attempts[-1].last_time or 0.0
            for span in spans:
                span.duration_s, span.status = max(0.0, last_time - span.start), "died"
        return spans

    def kept_records(self) -> Iterator[dict[str, Any]]:
        """Yield the kept records (all except plain points), in order."""
        for block in self._kept_record_blocks():
            for line in block.split(b"\n"):
                if line:
                    yield decode(line)

    @_query
    def _kept_record_blocks(self) -> list[bytes]:
        return [*(segment.kept_records() for segment in self._segments), b"\n".join(self._kept_records)]


def kind_of_stream(stream: str) -> str:
    """Return the kind of the metrics of a stream."""
    return "step" if stream == "window" else stream


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()
