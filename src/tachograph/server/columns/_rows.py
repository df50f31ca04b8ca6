"""Records of a journal as rows of the tables.

`JournalRows` reads blocks of a journal in order, with the decoder and the rules of the file store, so that both have
the same points. All it must remember is in `JournalState`, which is stored with the cursor: reading can continue from
there in another process, and the rows are the same as if it had never stopped.

A *tile* has the extent of `TILE_POINTS` consecutive points of a series. A *summary* has the extent of all points of a
series in one attempt, without points that a later attempt repeated. When a later attempt has its first step, the
summaries of the attempts before it are counted again from the journal, which is rare.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from tachograph.journal import JournalFollower
from tachograph.reader import RecordBatch, batch_records, times_of
from tachograph.records import (
    CONFIG_CHANGED,
    METRIC_KINDS,
    POINT_KINDS,
    decode,
    decode_block,
    finite_or_none,
    step_of,
    to_json,
)
from tachograph.server.columns._encoding import encode_rows
from tachograph.server.columns._extent import Extent, PointColumns, extent_of
from tachograph.server.columns._schema import SCHEMA_TABLES
from tachograph.store import MARK_KINDS, StepColumns, StepDecoder, Tail, split_lines

__all__ = ["TILE_POINTS", "JournalRows", "JournalState", "TableRows"]

TILE_POINTS = 1_024
MAX_BODY_BYTES = 64 << 10
_MARK_VALUES = np.array([float(kind) for kind in MARK_KINDS])
_SPAN_KINDS = frozenset({"span", "span_start", "span_stop"})
_RUN_FACTS = ("project", "group", "job_type", "host", "world_size", "perf_tag")
_MAX_DAY = 65_535
_POINTS_KEY = ("run_id", "metric", "stream", "rank", "attempt")
_INVALID = (msgspec.MsgspecError, ValueError, RecursionError)
SORTED_BY_STEP, SORTED_BY_TIME = 1, 2


class _SeriesState(msgspec.Struct, array_like=True):
    """A series in the current attempt."""

    summary: Extent
    tile: Extent
    """The points after the last complete tile."""
    num_points: int = 0


class _StreamState(msgspec.Struct, array_like=True):
    """The rows of a stream in the current attempt: whether steps and times have never decreased, and the last ones."""

    sorted_by: int = SORTED_BY_STEP | SORTED_BY_TIME
    step: int | None = None
    time: float | None = None


class _AttemptSteps(msgspec.Struct, array_like=True):
    first: int | None = None
    last: int | None = None


class JournalState(msgspec.Struct):
    """The state of reading a journal up to an offset."""

    offset: int = 0
    epoch: float = math.nan
    step: int | None = None
    attempts: list[_AttemptSteps] = []
    streams: dict[str, _StreamState] = {}
    series: dict[str, dict[str, _SeriesState]] = {}
    """Metrics by stream and name."""
    started: float = math.nan
    last_time: float = math.nan
    facts: dict[str, Any] = {}
    config: dict[str, Any] = {}
    state: str = "running"


class _Limit(NamedTuple):
    """A later attempt, which repeats the steps from its first one on."""

    attempt: int
    first_step: int


class TableRows:
    """Rows of several journals, by table."""

    def __init__(self) -> None:
        self.num_rows = 0
        self._parts: dict[str, list[tuple[tuple[Any, ...], bytes]]] = {name: [] for name in SCHEMA_TABLES}

    def add(self, table: str, num_rows: int, **values: Any) -> None:
        """Add rows; see `encode_rows`."""
        sort_key = tuple(values[name] for name in _POINTS_KEY) if table == "points" else ()
        self._parts[table].append((sort_key, encode_rows(SCHEMA_TABLES[table], num_rows, values)))
        self.num_rows += num_rows

    def tables(self) -> Iterator[tuple[str, bytes]]:
        """Yield the rows of each table that has some, in the order in which they must be inserted: cursors last."""
        for name, parts in self._parts.items():
            if parts:
                # Points in the order of their key: 18.16 takes longer to insert them in another order.
                parts.sort(key=lambda part: part[0])
                yield name, b"".join(rows for _, rows in parts)


class JournalRows:
    """Turns one journal into rows, block by block."""

    def __init__(
        self,
        run_id: str,
        rank: int,
        name: str,
        path: Path,
        state: JournalState | None = None,
        batch: TableRows | None = None,
    ) -> None:
        """Continue after a state.

        Args:
            run_id: the run.
            rank: the rank that wrote the journal.
            name: the name of the run.
            path: the journal.
            state: the result of an earlier process.
            batch: gets the rows.
        """
        self.run_id, self.rank, self._name, self._path = run_id, rank, name, path
        self.state = state or JournalState()
        self.batch = batch or TableRows()
        self._decoder = StepDecoder()
        self._limits: list[_Limit] | None = None
        self._earlier: list[dict[str, dict[str, _SeriesState]]] = []
        self._changed_series: set[tuple[str, str]] = set()
        self._needs_recount = False
        self._start_tail()

    def _start_tail(self) -> None:
        self._tail = Tail(self.state.epoch, self.state.step)
        self._offsets: dict[str, list[Any]] = {}

    @property
    def attempt(self) -> int:
        """The number of the current attempt."""
        return max(0, len(self.state.attempts) - 1)

    def add(self, lines: bytes) -> None:
        """Add the next complete lines of the journal."""
        start = self.state.offset
        steps = self._decoder.decode_block(lines)
        if steps is not None:
            self._add_steps(steps, _line_offsets(lines, start))
        for piece in split_lines(lines) if steps is None else ():
            block, first = lines[piece.first : piece.end], start + piece.first
            columns = self._decoder.decode(piece, block)
            if columns is not None:
                self._add_steps(columns, _line_offsets(block, first))
                continue
            records, offsets, texts = _parse(block, first)
            if piece.num_steps:
                self._decoder.learn(records)
            self._add_records(records, offsets, texts)
        self.state.offset = start + len(lines)
        self._emit_tail()
        if self._needs_recount:
            self._needs_recount = False
            self._count_again()

    def finish(self) -> None:
        """Add the rows that are replaced as the journal grows: open tiles, summaries, and the run."""
        self._add_open_series()
        if self.rank == 0:
            self._add_run()

    def _add_open_series(self) -> None:
        changed_series, self._changed_series = sorted(self._changed_series), set()
        for stream, name in changed_series:
            series = self.state.series[stream][name]
            self._add_extents("summaries", stream, name, self.attempt, [series.summary], version=self.state.offset)
            if series.tile.n:
                self._add_tiles(stream, name, [series.tile], series.num_points // TILE_POINTS)

    def _add_steps(self, columns: StepColumns, offsets: Any) -> None:
        if not self.state.attempts:
            self.state.attempts.append(_AttemptSteps())
        self._set_steps(int(columns.steps[0]), int(columns.steps[-1]))
        self._set_time(float(columns.times[-1]))
        self._tail.add_steps(columns, self.attempt)
        self._offsets.setdefault("step", []).append(offsets)

    def _add_records(self, records: list[dict[str, Any]], offsets: list[int], texts: list[bytes]) -> None:
        position = 0
        for batch in batch_records(records):
            end = position + len(batch.records)
            if batch.event == "start":
                for record, offset in zip(batch.records, offsets[position:end], strict=True):
                    self.state.offset = offset  # the version of the rows of the attempt before
                    self._begin_attempt(record)
            elif not self.state.attempts:
                self.state.attempts.append(_AttemptSteps())
            self._update_state(batch)
            if batch.event in METRIC_KINDS:
                stream = "window" if "window/sec" in batch.names else batch.event
                self._tail.add(batch, self.attempt)
                self._offsets.setdefault(stream, []).append(np.array(offsets[position:end], np.int64))
            if batch.event not in POINT_KINDS and self._limits is None:
                add = self._add_spans if batch.event in _SPAN_KINDS else self._add_events
                add(batch.records, offsets[position:end], texts[position:end])
            position = end

    def _begin_attempt(self, record: dict[str, Any]) -> None:
        state = self.state
        self._emit_tail()
        if state.attempts:
            if self._limits is None:
                self._add_open_series()
            self._earlier.append(state.series)
        state.attempts.append(_AttemptSteps())
        state.streams, state.series, state.epoch, state.state = {}, {}, math.nan, "running"
        if len(state.attempts) == 1:
            state.started = finite_or_none(record.get("time")) or math.nan
        state.facts = {name: record[name] for name in _RUN_FACTS if record.get(name) is not None}
        config = record.get("config")
        state.config = config if isinstance(config, dict) else {}
        self._start_tail()

    def _update_state(self, batch: RecordBatch) -> None:
        """Update the state that later rows need: steps, times, the config and the end of the run."""
        for record in batch.records:
            if (time_s := finite_or_none(record.get("time"))) is not None:
                self._set_time(time_s)
            if batch.event == "step" and (step := step_of(record)) is not None:
                num_before = record.get("window/iterations")  # a window covers all its iterations
                is_window = type(num_before) is int and num_before > 0
                self._set_steps(step - (num_before - 1 if is_window else 0), step)  # type: ignore[operator]
            elif batch.event == "end":
                self.state.state = str(record.get("status") or "finished")
            elif record.get("name") == CONFIG_CHANGED and isinstance(record.get("config"), dict):
                self.state.config = {**self.state.config, **record["config"]}

    def _set_steps(self, first: int, last: int) -> None:
        steps = self.state.attempts[-1]
        steps.last = last if steps.last is None else max(steps.last, last)
        if steps.first is None:
            steps.first = first
            # Points of earlier attempts after this step were repeated.
            self._needs_recount = len(self.state.attempts) > 1 and self._limits is None

    def _set_time(self, time_s: float) -> None:
        if not time_s <= self.state.last_time:  # also if it is NaN
            self.state.last_time = time_s

    def _emit_tail(self) -> None:
        """Add the rows of the points read since the last call, all of one attempt."""
        state, tail = self.state, self._tail
        state.epoch, state.step = tail.epoch, tail.step
        for stream in tail.streams:
            self._check_order(stream)
        for stream, name in tail.series_keys:
            points = self._points(stream, name)
            if self._limits is not None:
                self._count(stream, name, points)
                continue
            self.batch.add(
                "points",
                len(points),
                day=_days(points.time),
                **self._key(stream, name, self.attempt),
                step=points.step,
                time=points.time,
                value=points.value,
                offset=points.offset,
            )
            self._add_to_series(stream, name, points)
        self._start_tail()

    def _key(self, stream: str, name: str, attempt: int) -> dict[str, Any]:
        return {"run_id": self.run_id, "metric": name, "stream": stream, "rank": self.rank, "attempt": attempt}

    def _points(self, stream: str, name: str) -> PointColumns:
        """Return the points of a series in the tail, in the order of their records."""
        part, rows = self._tail.series_part(stream, name), self._tail.rows(stream)
        assert part is not None  # noqa: S101 - the tail has named it
        row, value = part.rows_at(np.arange(len(part.values))), part.values
        if len(part.mark_rows):
            row = np.concatenate([row, part.mark_rows]).astype(np.int64)
            value = np.concatenate([value, _MARK_VALUES[part.mark_kinds]])
            order = np.argsort(row, kind="stable")
            row, value = row[order], value[order]
        offsets = self._offsets[stream]
        if len(offsets) > 1:
            self._offsets[stream] = offsets = [np.concatenate(offsets)]
        return PointColumns(offsets[0][row], rows.step[row].astype(np.int64), rows.time[row], value)

    def _check_order(self, stream: str) -> None:
        rows, stream_state = self._tail.rows(stream), self.state.streams.setdefault(stream, _StreamState())
        by_step, by_time = rows.ranges[0].sorted_by[:2]
        if not by_step or (stream_state.step is not None and int(rows.step[0]) < stream_state.step):
            stream_state.sorted_by &= ~SORTED_BY_STEP
        # NaN compares as false, which counts as unsorted, as in the file store.
        if not by_time or (stream_state.time is not None and not float(rows.time[0]) >= stream_state.time):
            stream_state.sorted_by &= ~SORTED_BY_TIME
        stream_state.step, stream_state.time = int(rows.step[-1]), float(rows.time[-1])

    def _add_to_series(self, stream: str, name: str, points: PointColumns) -> None:
        series = self.state.series.setdefault(stream, {}).get(name)
        if series is None:
            series = self.state.series[stream][name] = _SeriesState(Extent(), Extent())
        self._changed_series.add((stream, name))
        first_chunk = series.num_points // TILE_POINTS
        complete = []
        begin = 0
        while begin < len(points):
            end = min(len(points), begin + TILE_POINTS - series.tile.n)
            extent = extent_of(points.part(slice(begin, end)))
            series.summary.add(extent)
            series.tile.add(extent)
            if series.tile.n == TILE_POINTS:
                complete.append(series.tile)
                series.tile = Extent()
            begin = end
        series.num_points += len(points)
        if complete:
            self._add_tiles(stream, name, complete, first_chunk)

    def _add_tiles(self, stream: str, name: str, tiles: list[Extent], first_chunk: int) -> None:
        chunks = np.arange(first_chunk, first_chunk + len(tiles))
        sorted_by = self.state.streams[stream].sorted_by
        self._add_extents("tiles", stream, name, self.attempt, tiles, chunk=chunks, sorted=sorted_by)

    def _add_extents(
        self, table: str, stream: str, name: str, attempt: int, extents: list[Extent], **values: Any
    ) -> None:
        fields = {field: [getattr(each, field) for each in extents] for field in Extent.__struct_fields__}
        self.batch.add(table, len(extents), **self._key(stream, name, attempt), **fields, **values)

    def _count_again(self) -> None:
        """Write the summaries of earlier attempts without the points that later ones repeated."""
        recount = JournalRows(self.run_id, self.rank, self._name, self._path)
        recount._limits = [
            _Limit(number, steps.first)
            for number, steps in enumerate(self.state.attempts)
            if number > 0 and steps.first is not None
        ]
        follower = JournalFollower(self._path, end=self.state.offset)
        while lines := follower.poll_lines():
            recount.add(lines)
        for attempt, streams in enumerate(recount._earlier):
            for stream, series_by_name in streams.items():
                for name, series in series_by_name.items():
                    version = {"version": self.state.offset}
                    self._add_extents("summaries", stream, name, attempt, [series.summary], **version)

    def _count(self, stream: str, name: str, points: PointColumns) -> None:
        keep = np.ones(len(points), dtype=bool)
        for limit in self._limits or ():
            if limit.attempt > self.attempt:
                keep &= points.step < limit.first_step
        series_by_name = self.state.series.setdefault(stream, {})
        series_by_name.setdefault(name, _SeriesState(Extent(), Extent())).summary.add(extent_of(points.part(keep)))

    def _add_events(self, records: list[dict[str, Any]], offsets: list[int], texts: list[bytes]) -> None:
        times = np.array(times_of(records))
        steps = [step_of(record) for record in records]
        self.batch.add(
            "events",
            len(records),
            day=_days(times),
            kind=str(records[0]["event"]),
            run_id=self.run_id,
            rank=self.rank,
            attempt=self.attempt,
            name=_texts(records, "name"),
            severity=_texts(records, "severity"),
            step=[-1 if step is None else step for step in steps],
            time=times,
            body=_bodies(texts),
            body_bytes=[len(text) for text in texts],
            offset=offsets,
        )

    def _add_spans(self, records: list[dict[str, Any]], offsets: list[int], texts: list[bytes]) -> None:
        times = np.array(times_of(records))
        durations = [finite_or_none(record.get("duration_s")) for record in records]
        self.batch.add(
            "spans",
            len(records),
            day=_days(times),
            run_id=self.run_id,
            rank=self.rank,
            attempt=self.attempt,
            kind=str(records[0]["event"]),
            name=_texts(records, "name"),
            span_id=_texts(records, "span_id"),
            parent_id=_texts(records, "parent_id"),
            time=times,
            duration_s=[math.nan if duration is None else duration for duration in durations],
            status=_texts(records, "status"),
            body=_bodies(texts),
            body_bytes=[len(text) for text in texts],
            offset=offsets,
        )

    def _add_run(self) -> None:
        state, facts = self.state, self.state.facts
        world_size = facts.get("world_size")
        last = max((steps.last for steps in state.attempts if steps.last is not None), default=-1)
        texts = {name: _fact(facts.get(name)) for name in ("project", "host", "job_type", "perf_tag")}
        self.batch.add(
            "runs",
            1,
            **texts,
            run_id=self.run_id,
            name=self._name,
            state=state.state,
            started=state.started,
            last_time=state.last_time,
            last_step=last,
            num_attempts=len(state.attempts),
            world_size=world_size if type(world_size) is int and 0 <= world_size < 2**32 else 1,
            run_group=_fact(facts.get("group")),
            config=to_json(state.config),
            version=state.offset,
        )


def _parse(block: bytes, start: int) -> tuple[list[dict[str, Any]], list[int], list[bytes]]:
    """Return the records in complete lines, their offsets and their texts, without invalid lines."""
    texts = block.split(b"\n")[:-1]
    offsets = (np.cumsum([0, *(len(text) + 1 for text in texts[:-1])]) + start).tolist()
    records = decode_block(block)
    if records is not None and len(records) == len(texts):
        return records, offsets, texts
    valid_lines: list[tuple[dict[str, Any], int, bytes]] = []
    for offset, text in zip(offsets, texts, strict=True):
        if text:
            try:
                valid_lines.append((decode(text), offset, text))
            except _INVALID:
                continue
    return [line[0] for line in valid_lines], [line[1] for line in valid_lines], [line[2] for line in valid_lines]


def _line_offsets(block: bytes, start: int) -> Any:
    newlines = np.flatnonzero(np.frombuffer(block, np.uint8) == ord("\n"))
    return np.concatenate([[0], newlines[:-1] + 1]) + start


def _days(times: Any) -> Any:
    """Return the days since 1970 of some times, within the range of ClickHouse's dates."""
    return np.nan_to_num(np.clip(times // 86_400, 0, _MAX_DAY)).astype(np.uint16)


def _texts(records: Iterable[dict[str, Any]], field: str) -> list[str]:
    return [_fact(record.get(field)) for record in records]


def _fact(value: Any) -> str:
    return "" if value is None else value if isinstance(value, str) else str(value)


def _bodies(texts: Iterable[bytes]) -> list[bytes]:
    """Return the texts of records; a longer one is left in the journal."""
    return [text if len(text) <= MAX_BODY_BYTES else b"" for text in texts]
