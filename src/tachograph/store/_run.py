"""A run as the dashboard sees it: what its records say in all, and its series as columns."""

from __future__ import annotations

import contextlib
import hashlib
import math
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from tachograph.journal import JournalFollower, RunFolder
from tachograph.reader import MetricSummary, RecordBatch, RecordedSpan, RunDigest, accepts_requests, batch_records
from tachograph.records import POINT_KINDS, decode, encode, finite_or_none
from tachograph.store._cache import CacheFolder
from tachograph.store._columns import Axis, Rows, SeriesPart
from tachograph.store._completions import CompletionIndex, stubbed
from tachograph.store._query import Line, Mark, Part, View, lines_of, marks_of, points_of
from tachograph.store._segment import AttemptStats, Segment, SegmentError, seal, segment_path, write_segment
from tachograph.store._tail import Tail
from tachograph.store._timeline import SpanTable, SpanView

__all__ = ["StoredRun"]

_SEGMENT_BYTES = 32 << 20
_LEAST_SEGMENT_BYTES = 1 << 20
_MOST_MAPPED_BYTES = 16 << 20
"""Of segments above this, the pages that were looked at are given back after each question."""
Answer = TypeVar("Answer")


class StoredRun:
    """Follows a run's journal into columns. Several threads may use one; several processes may follow one run."""

    def __init__(self, folder: RunFolder, *, segment_bytes: int = _SEGMENT_BYTES) -> None:
        self.folder = folder
        self.lock = threading.RLock()
        """Held while anything of the run is read or taken in."""
        self._segment_bytes = segment_bytes
        self._cache = CacheFolder(folder)
        self._num_replaced = 0
        self._is_behind = True
        self._open()

    def _open(self) -> None:
        """Begin with what the segments hold."""
        self.digest = RunDigest(self.folder)
        self.completions = CompletionIndex()
        self._spans = SpanTable()
        self._segments: list[Segment] = []
        self._series: dict[str, list[str]] = {}
        self._generation = ""
        end = 0
        while True:
            try:
                segment = Segment(segment_path(self._cache.path, end), self.folder.journal, end)
            except SegmentError:
                break
            self._adopt(segment)
            end = segment.footer.end
        self._start_tail(end)
        self._follower = JournalFollower(self.folder.journal, end)
        self._num_restarts = 0
        self._next_commit = end + self._segment_bytes

    def _adopt(self, segment: Segment) -> None:
        footer = segment.footer
        for line in segment.kept().split(b"\n"):
            if line:
                self._take_kept(decode(line), footer.attempts)
        self.digest.restore(footer.counts, [msgspec.structs.asdict(attempt) for attempt in footer.attempts])
        self._segments.append(segment)
        for stream, name in segment.series:
            self._know(stream, name)

    def _start_tail(self, start: int, num_bad_before: int = 0) -> None:
        footer = self._segments[-1].footer if self._segments else None
        epoch = math.nan if footer is None or footer.epoch is None else footer.epoch
        self._tail = Tail(epoch, footer.step if footer else None)
        self._tail_start = start
        self._num_bad_before = num_bad_before
        self._kept: list[bytes] = []

    @property
    def generation(self) -> str:
        """Which journal this is: another text if the file was replaced, so that nothing known of it holds any more."""
        if not self._generation:
            with contextlib.suppress(OSError), open(self.folder.journal, "rb") as file:
                line = file.readline(64 << 10)
                self._generation = hashlib.blake2b(line, digest_size=6).hexdigest() if line.endswith(b"\n") else ""
        return (self._generation or "0") + (f"{self._num_replaced:x}" if self._num_replaced else "")

    @property
    def version(self) -> str:
        """Another text whenever there is something new."""
        return f"{self.generation}-{self._follower.offset}"

    @property
    def indexed(self) -> float:
        """Which part of the journal has been taken in; all of it, if only what came since the last look is not."""
        if not self._is_behind:
            return 1.0
        try:
            size = self.folder.journal.stat().st_size
        except OSError:
            return 1.0
        return min(1.0, self._follower.offset / size) if size else 1.0

    @property
    def started(self) -> float:
        """When the run began, in unix time; 0 if nothing says so."""
        return finite_or_none(self.digest.attempts[0].start.get("time")) or 0.0 if self.digest.attempts else 0.0

    @property
    def num_bad_lines(self) -> int:
        """Lines that could not be read, such as one that a dying process left half written."""
        return sum(segment.footer.num_bad_lines for segment in self._segments) + self._num_bad_in_tail

    @property
    def _num_bad_in_tail(self) -> int:
        return self._follower.num_bad_lines - self._num_bad_before

    def refresh(self, most_s: float = math.inf) -> bool:
        """Take in what was appended; stop after a while if there is much. Return whether there was anything."""
        with self.lock:
            deadline_s = time.monotonic() + most_s
            before = self.version
            while True:
                start = self._follower.offset
                records = self._follower.poll_block()
                if self._follower.num_restarts != self._num_restarts:  # the file was replaced, or emptied
                    self._begin_again()
                    continue
                self._take(stubbed(self.folder.journal, records, start, self._follower.offset))
                if self._is_time_to_commit(is_end=not records):
                    self._commit()
                self._is_behind = bool(records)
                if not records or time.monotonic() > deadline_s:
                    return self.version != before

    def _begin_again(self) -> None:
        self._num_replaced = (self._num_replaced + 1) % 4096
        self._cache.clear()
        self._open()

    def _take(self, records: list[dict[str, Any]]) -> None:
        for alike in batch_records(records):
            is_plain = alike.event in POINT_KINDS and "window/sec" not in alike.names
            if alike.event == "start":
                self._tail.begin_attempt()
            if not is_plain or not self.digest.attempts:  # a journal may have lost its first line
                self._kept += map(encode, alike.records[:1] if is_plain else alike.records)
            self._digest(alike)
            self._tail.take(alike, len(self.digest.attempts) - 1)
        for stream, name in self._tail.series:
            self._know(stream, name)

    def _take_kept(self, record: dict[str, Any], attempts: list[AttemptStats]) -> None:
        """Take a record again, knowing what plain points said of the attempt that a `start` ends."""
        known = self.digest.attempts
        if record["event"] == "start" and known:
            known[-1].last_time = attempts[len(known) - 1].last_time
        for alike in batch_records([record]):
            self._digest(alike)

    def _digest(self, alike: RecordBatch) -> None:
        for span in self.digest.take(alike):
            self._spans.add(span)
        if alike.event == "completions":
            for stub in alike.records:
                self.completions.take(stub)

    def _know(self, stream: str, name: str) -> None:
        streams = self._series.setdefault(name, [])
        if stream not in streams:
            streams.append(stream)

    def _is_time_to_commit(self, *, is_end: bool) -> bool:
        if self._follower.offset >= self._next_commit:
            return True
        is_worth_it = self._follower.offset - self._tail_start >= _LEAST_SEGMENT_BYTES
        is_tried = self._next_commit > self._tail_start + self._segment_bytes  # and could not be written
        return is_end and is_worth_it and not is_tried and not accepts_requests(self.digest)

    def _commit(self) -> None:
        """Make a segment of the tail, unless another reader has, or there is no room for one."""
        start, end = self._tail_start, self._follower.offset
        self._next_commit = end + self._segment_bytes
        attempts = [
            AttemptStats(item.first_step, item.last_step, item.last_time, item.num_records, item.num_steps)
            for item in self.digest.attempts
        ]
        try:
            path = segment_path(self._cache.ready(), start)
            is_ours = write_segment(
                path,
                self._tail,
                b"\n".join(self._kept),
                start=start,
                end=end,
                seal=seal(self.folder.journal, end),
                counts=self.digest.counts,
                attempts=attempts,
                num_bad_lines=self._num_bad_in_tail,
            )
        except OSError:  # what is not in a segment stays in memory
            return
        try:
            segment = Segment(path, self.folder.journal, start)
        except SegmentError:  # what another one left there is of no use
            _remove(path)
            return
        if is_ours:
            self._segments.append(segment)
            self._start_tail(end, self._follower.num_bad_lines)
        else:
            self._open()

    def _read(self, question: Callable[[], Answer]) -> Answer:
        """Ask the columns; if a segment turns out to be damaged, make it anew and ask again."""
        with self.lock:
            try:
                return question()
            except SegmentError:
                for segment in self._segments:
                    _remove(segment.path)
                self._open()
                self.refresh()
                return question()
            finally:
                if sum(segment.size_bytes for segment in self._segments) > _MOST_MAPPED_BYTES:
                    for segment in self._segments:
                        segment.let_go()

    @property
    def _parts(self) -> list[Part]:
        return [*self._segments, self._tail]

    @property
    def metric_names(self) -> list[str]:
        """Every metric, in order of appearance."""
        return list(self._series)

    def metrics(self) -> dict[str, MetricSummary]:
        """Return every metric in a few numbers."""
        with self.lock:
            summaries = {name: MetricSummary(kind=_kind(streams[0])) for name, streams in self._series.items()}
            for part in self._parts:
                found = [(stats, name) for stream, name in part.series if (stats := part.stats(stream, name))]
                for stats, name in sorted(found, key=lambda item: item[0].order):
                    summary = summaries[name]
                    summary.count += stats.num_values + stats.num_marks
                    summary.num_not_finite += stats.num_marks
                    summary.low, summary.high = min(summary.low, stats.low), max(summary.high, stats.high)
                    summary.last, summary.last_step = stats.last, stats.last_step
            return summaries

    def last_value(self, name: str) -> float | None:
        """Return what was recorded last of a metric."""
        with self.lock:
            for part in reversed(self._parts):
                found = [stats for stream in self._series.get(name, []) if (stats := part.stats(stream, name))]
                if found:
                    return max(found, key=lambda stats: stats.order).last
            return None

    def cursor(self) -> dict[str, int]:
        """Return how many rows each stream has."""
        with self.lock:
            names = dict.fromkeys(stream for part in self._parts for stream in part.streams)
            return {name: sum(part.num_rows(name) for part in self._parts) for name in names}

    def series(
        self,
        name: str,
        *,
        axis: Axis = "step",
        low: float | None = None,
        high: float | None = None,
        num_points: int = 2_000,
        after: dict[str, int] | None = None,
    ) -> tuple[list[Line], list[Mark]]:
        """Return the lines and marks of a metric in a view."""

        def found() -> tuple[list[Line], list[Mark]]:
            lines: list[Line] = []
            marks: list[Mark] = []
            for stream in self._series.get(name, []):
                view = View(axis, low, high, num_points, (after or {}).get(stream, 0))
                lines += lines_of(self._parts, stream, name, view)
                marks += marks_of(self._parts, stream, name, view)
            return lines, marks

        return self._read(found)

    def points(
        self, names: list[str], *, axis: Axis, low: float | None, high: float | None
    ) -> Iterator[list[tuple[str, int, int, float, float, float]]]:
        """Yield every point of some metrics in blocks: name, attempt, step, time, epoch (NaN if unknown) and value."""

        def found() -> list[tuple[str, Rows, SeriesPart]]:
            return [
                (name, part.rows(stream), series)
                for name in names
                for part in self._parts
                for stream in self._series.get(name, [])
                if (series := part.part(stream, name)) is not None
            ]

        for name, rows, series in self._read(found):
            yield from points_of(name, rows, series, axis, low, high)

    def spans(self, low: float | None, high: float | None, *, num_points: int, most: int) -> SpanView:
        """Return the spans of a stretch of time."""
        with self.lock:
            return self._spans.view(self._unfinished_spans(), low, high, num_points=num_points, most=most)

    def _unfinished_spans(self) -> list[RecordedSpan]:
        """Return the spans without an end: they go on, or the process died in them."""
        spans = [msgspec.structs.replace(span, status="open") for span in self.digest.open_spans()]
        if not accepts_requests(self.digest):
            last_time = self.digest.attempts[-1].last_time or 0.0
            for span in spans:
                span.duration_s, span.status = max(0.0, last_time - span.start), "died"
        return spans

    def kept_records(self) -> Iterator[dict[str, Any]]:
        """Yield the records that are no plain points, in order."""
        with self.lock:
            blocks = [segment.kept() for segment in self._segments] + [b"\n".join(self._kept)]
        for block in blocks:
            for line in block.split(b"\n"):
                if line:
                    yield decode(line)


def _kind(stream: str) -> str:
    return "step" if stream == "window" else stream


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()
