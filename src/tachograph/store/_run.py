"""A run as the dashboard sees it: what its records say in all, and its series as columns."""

from __future__ import annotations

import contextlib
import math
import shutil
import tempfile
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from tachograph.journal import JournalFollower, MetricSummary, RunDigest, RunFolder, RunState, Span, grouped
from tachograph.records import decode, encode, finite
from tachograph.store._columns import Axis
from tachograph.store._query import Line, Mark, Part, View, lines_of, marks_of, points_of
from tachograph.store._segment import AttemptStats, Segment, SegmentError, seal, segment_path, write_segment
from tachograph.store._tail import Tail
from tachograph.store._timeline import SpanTable, SpanView

__all__ = ["StoredRun"]

_SEGMENT_BYTES = 32 << 20
_LEAST_SEGMENT_BYTES = 1 << 20
_PLAIN = {"step", "system"}
_ENDED = {RunState.FINISHED, RunState.FAILED, RunState.CRASHED}


class StoredRun:
    """Follows a run's journal into columns. Several threads may use one; several processes may follow one run."""

    def __init__(self, folder: RunFolder, *, segment_bytes: int = _SEGMENT_BYTES) -> None:
        self.folder = folder
        self.lock = threading.RLock()
        """Held while anything of the run is read or taken in."""
        self._segment_bytes = segment_bytes
        self._own_cache: Path | None = None
        self._generation = 0
        self._open()

    def _open(self) -> None:
        """Begin with what the segments hold."""
        self.digest = RunDigest(self.folder)
        self._spans = SpanTable()
        self._segments: list[Segment] = []
        self._bases: dict[str, int] = {}
        self._series: dict[str, list[str]] = {}
        end = 0
        while True:
            try:
                segment = Segment(segment_path(self._cache, end), self.folder.journal, end)
            except SegmentError:
                break
            self._adopt(segment)
            end = segment.footer.end
        self._start_tail(end)
        self._follower = JournalFollower(self.folder.journal, end)

    def _adopt(self, segment: Segment) -> None:
        for line in segment.kept().split(b"\n"):
            if line:
                self._take_kept(decode(line))
        footer = segment.footer
        self.digest.restore(footer.counts, [msgspec.structs.asdict(attempt) for attempt in footer.attempts])
        self._segments.append(segment)
        for stream, name in segment.series:
            self._know(stream, name)

    def _start_tail(self, start: int) -> None:
        epoch = self._segments[-1].footer.epoch if self._segments else None
        self._tail = Tail(math.nan if epoch is None else epoch)
        self._tail_start = start
        self._kept: list[bytes] = []
        self._last_plain: dict[str, Any] | None = None

    @property
    def _cache(self) -> Path:
        return self._own_cache or self.folder.cache

    @property
    def generation(self) -> int:
        """Grows when the journal was replaced by another one, so that nothing known of it holds any more."""
        return self._generation

    @property
    def version(self) -> str:
        """Another text whenever there is something new."""
        return f"{self._generation}-{self._follower.offset}"

    @property
    def indexed(self) -> float:
        """Which part of the journal has been taken in."""
        try:
            size = self.folder.journal.stat().st_size
        except OSError:
            return 1.0
        return min(1.0, self._follower.offset / size) if size else 1.0

    @property
    def started(self) -> float:
        """When the run began, in unix time; 0 if nothing says so."""
        return finite(self.digest.attempts[0].start.get("time")) or 0.0 if self.digest.attempts else 0.0

    @property
    def num_bad_lines(self) -> int:
        """Lines that could not be read, of those that are in no segment."""
        return self._follower.num_bad_lines

    def refresh(self, most_s: float = math.inf) -> bool:
        """Take in what was appended; stop after a while if there is much. Return whether there was anything."""
        with self.lock:
            deadline_s = time.monotonic() + most_s
            before = self.version
            restarts = self._follower.num_restarts
            while records := self._follower.poll_block():
                if self._follower.num_restarts != restarts:
                    self._begin_again()
                    return True
                self._take(records)
                num_waiting = self._follower.offset - self._tail_start
                if num_waiting >= self._segment_bytes:
                    self._commit()
                if time.monotonic() > deadline_s:
                    break
            else:
                if self._follower.offset - self._tail_start >= _LEAST_SEGMENT_BYTES and self.digest.state in _ENDED:
                    self._commit()
            return self.version != before

    def _begin_again(self) -> None:
        self._generation += 1
        for path in self._cache.glob("v*.seg"):
            with contextlib.suppress(OSError):
                path.unlink()
        self._open()

    def _take(self, records: list[dict[str, Any]]) -> None:
        for names, alike in grouped(records):
            if alike[0]["event"] in _PLAIN and "window/sec" not in names:
                self._last_plain = alike[-1]
            else:
                for record in alike:
                    self._keep(record)
            for span in self.digest.take(names, alike):
                self._spans.add(span)
            attempt = self.digest.attempts[-1]
            self._tail.take(names, alike, attempt.index, attempt.last_step)
        for stream, name in self._tail.series:
            self._know(stream, name)

    def _keep(self, record: dict[str, Any]) -> None:
        if record["event"] == "start":
            self._tail.begin_attempt()
            if self._last_plain is not None:  # when the attempt before was last heard of
                self._kept.append(encode(self._last_plain))
        self._last_plain = None
        self._kept.append(encode(record))

    def _take_kept(self, record: dict[str, Any]) -> None:
        for span in self.digest.take(tuple(record), [record]):
            self._spans.add(span)

    def _know(self, stream: str, name: str) -> None:
        streams = self._series.setdefault(name, [])
        if stream not in streams:
            streams.append(stream)

    def _commit(self) -> None:
        """Make a segment of the tail, unless another reader has."""
        start, end = self._tail_start, self._follower.offset
        attempts = [
            AttemptStats(item.first_step, item.last_step, item.last_time, item.num_records, item.num_steps)
            for item in self.digest.attempts
        ]
        path = segment_path(self._cache_to_write(), start)
        kept = b"\n".join(self._kept)
        sealed = seal(self.folder.journal, end)
        counts = self.digest.counts
        is_ours = write_segment(
            path, self._tail, kept, start=start, end=end, seal=sealed, counts=counts, attempts=attempts
        )
        try:
            segment = Segment(path, self.folder.journal, start)
        except SegmentError:  # what another one left there is of no use
            path.unlink(missing_ok=True)
            return
        if is_ours:
            self._segments.append(segment)
            self._start_tail(end)
        else:
            self._open()

    def _cache_to_write(self) -> Path:
        if self._own_cache is None:
            try:
                self.folder.cache.mkdir(parents=True, exist_ok=True)
                with tempfile.TemporaryFile(dir=self.folder.cache):
                    return self.folder.cache
            except OSError:  # the folder may only be read
                self._own_cache = Path(tempfile.mkdtemp(prefix="tacho-cache-"))
                weakref.finalize(self, shutil.rmtree, self._own_cache, ignore_errors=True)
        return self._own_cache

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
            summaries: dict[str, MetricSummary] = {}
            for part in self._parts:
                for stream, name in part.series:
                    stats = part.stats(stream, name)
                    kind = "step" if stream == "window" else stream
                    summary = summaries.setdefault(name, MetricSummary(kind=kind))
                    summary.count += stats.num_values + stats.num_marks
                    summary.num_not_finite += stats.num_marks
                    summary.low, summary.high = min(summary.low, stats.low), max(summary.high, stats.high)
                    summary.last, summary.last_step = stats.last, stats.last_step
            return summaries

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
        with self.lock:
            lines: list[Line] = []
            marks: list[Mark] = []
            for stream in self._series.get(name, []):
                view = View(axis, low, high, num_points, (after or {}).get(stream, 0))
                lines += lines_of(self._parts, stream, name, view)
                marks += marks_of(self._parts, stream, name, view)
            return lines, marks

    def points(
        self, names: list[str], *, axis: Axis, low: float | None, high: float | None
    ) -> Iterator[list[tuple[str, int, int, float, float, float]]]:
        """Yield every point of some metrics in blocks: name, attempt, step, time, epoch (NaN if unknown) and value."""
        for name in names:
            with self.lock:
                parts, streams = self._parts, list(self._series.get(name, []))
            for part in parts:
                for stream in streams:
                    yield from points_of(part, stream, name, axis, low, high)

    def spans(self, low: float | None, high: float | None, *, num_points: int, most: int) -> SpanView:
        """Return the spans of a stretch of time."""
        with self.lock:
            return self._spans.view(self._unfinished_spans(), low, high, num_points=num_points, most=most)

    def _unfinished_spans(self) -> list[Span]:
        """Return the spans without an end: they go on, or the process died in them."""
        spans = [msgspec.structs.replace(span, status="open") for span in self.digest.open_spans()]
        if self.digest.state in _ENDED:
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
