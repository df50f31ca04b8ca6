"""`tachograph.read`: the records of a finished, running or crashed run."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from tachograph.black_box import Dump, read_dumps
from tachograph.exceptions import RunNotFoundError, did_you_mean
from tachograph.journal import JournalFollower, RunFolder, RunState, find_run, read_records
from tachograph.reader._batches import batch_records, time_of
from tachograph.reader._digest import Attempt, RunDigest
from tachograph.reader._media import MediaIndex, RecordedHistogram, RunMedia, read_histograms, scan_media
from tachograph.reader._metrics import MetricSummaries, MetricSummary, cover_windows
from tachograph.reader._ranks import RankView, read_ranks
from tachograph.reader._spans import RecordedSpan, SpanTreeBuilder, sort_depth_first
from tachograph.records import METRIC_KINDS, clock_jump_s, finite_or_none, is_number, step_of

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pandas as pd

__all__ = ["RunHistory", "Series", "find_readable_run", "read"]


class Series(NamedTuple):
    """The points of one metric, as parallel arrays."""

    steps: npt.NDArray[np.int64]
    values: npt.NDArray[np.float64]
    times: npt.NDArray[np.float64]
    attempts: npt.NDArray[np.int64]


class HasPath(Protocol):
    """An object with the path of a run folder, such as `Run`."""

    @property
    def path(self) -> str | None:
        """The run folder, or None if the run is not recorded."""
        ...


class RunHistory(RunDigest):
    """A run on disk.

    Safe to use while the run is being recorded, on a read-only folder, and after a crash. Call `refresh` to read new
    records.

    Example:
        >>> history = tachograph.read("logs/greyjacket")
        >>> history.state, len(history.attempts)
        >>> steps, losses, *_ = history.series("train_loss")
    """

    def __init__(self, folder: RunFolder) -> None:
        super().__init__(folder)
        self._follower = JournalFollower(folder.journal)
        self._num_restarts = 0
        self._metrics = MetricSummaries()
        self._media: tuple[object, MediaIndex] | None = None
        self.refresh()

    def __repr__(self) -> str:
        return f"RunHistory({self.name!r}, {self.state}, {self._counts.get('step', 0)} step records)"

    def refresh(self) -> int:
        """Read the records appended since the last call and return their number."""
        num_new = 0
        while records := self._follower.poll_block():
            if self._follower.num_restarts != self._num_restarts:  # the file was replaced
                self._num_restarts = self._follower.num_restarts
                self._reset()
                self._metrics = MetricSummaries()
            for batch in batch_records(records):
                self.add(batch)
                self._metrics.add(batch)
            num_new += len(records)
        return num_new

    @property
    def metrics(self) -> dict[str, MetricSummary]:
        """A summary of each metric, in order of appearance; `series` returns the values."""
        return cover_windows(self._metrics.summaries)

    def spans(self, name: str | None = None) -> list[RecordedSpan]:
        """Return the spans, all or those with one name: parents before children, otherwise by start time."""
        builder = SpanTreeBuilder()
        spans: list[RecordedSpan] = []
        last_time = 0.0
        for record in read_records(self.folder.journal):
            spans += builder.add(record, last_time)
            if jump_s := clock_jump_s(record):
                builder.set_clock(jump_s)
                last_time += jump_s
            last_time = max(last_time, time_of(record))
        if self.state in {RunState.RUNNING, RunState.STALE}:
            for span in builder.open_spans():
                span.status = "open"
                spans.append(span)
        else:
            spans += builder.close(last_time)
        return [span for span in sort_depth_first(spans) if name is None or span.name == name]

    @property
    def ranks(self) -> list[RankView]:
        """The ranks of a distributed job, rank 0 first; empty for a job of one process."""
        return read_ranks(self.folder)

    @property
    def dumps(self) -> list[Dump]:
        """The evidence that was captured when something went wrong, oldest first; see `docs/black_box.md`."""
        return read_dumps(self.folder)

    @property
    def num_bad_lines(self) -> int:
        """The number of invalid lines, such as one that a dying process left incomplete."""
        return self._follower.num_bad_lines

    def records(self, event: str | None = None) -> Iterator[dict[str, Any]]:
        """Yield the records that the journal contains now, all or those of one kind."""
        for record in read_records(self.folder.journal):
            if event is None or record["event"] == event:
                yield record

    def completions(self, table: str | None = None) -> list[dict[str, Any]]:
        """Return the rows recorded with `Completions`, all or those of one table, oldest first."""
        return [
            row
            for record in self.records("completions")
            if table in (None, record.get("table")) and isinstance(record.get("rows"), list)
            for row in record["rows"]
            if isinstance(row, dict)
        ]

    @property
    def media(self) -> RunMedia:
        """Pictures, tables, text, audio, video and files that were logged; `histograms` has the histograms."""
        return RunMedia(self.folder, self._media_index)

    def histograms(self, name: str) -> list[RecordedHistogram]:
        """Return one histogram at each step at which it was logged.

        Raises:
            KeyError: if no histogram has that name.
        """
        locations = self._media_index.histogram_locations(name)
        if not locations:
            names = self._media_index.histogram_names()
            raise KeyError(f"run {self.name!r} has no histogram {name!r}{did_you_mean(name, names)}")
        return list(read_histograms(self.folder.journal, locations, name))

    @property
    def _media_index(self) -> MediaIndex:
        """The index of media; the journal is read for it only if it has media, and again once it has more."""
        kinds = ("media", "histograms", "completions", "event")  # some events are texts and histograms
        state = (self._num_restarts, *(self._counts.get(kind, 0) for kind in kinds))
        if self._media is None or self._media[0] != state:
            self._media = (state, scan_media(self.folder.journal) if any(state[1:]) else MediaIndex())
        return self._media[1]

    def series(self, name: str, *, overlap: Literal["keep", "latest"] = "keep") -> Series:
        """Return one metric as numpy arrays.

        Args:
            name: for example ``"train_loss"``, ``"val_loss"`` or ``"cpu_pct"``.
            overlap: after a resume, some steps may occur twice. ``"keep"`` returns every point with its attempt;
                ``"latest"`` drops points at steps that a later attempt repeated.

        Raises:
            KeyError: if no metric has that name.
        """
        import numpy as np

        steps: list[int] = []
        values: list[float] = []
        times: list[float] = []
        attempts: list[int] = []
        attempt, step = -1, 0
        for record in read_records(self.folder.journal):
            attempt += record["event"] == "start" or attempt < 0  # the `start` record may be missing
            if record["event"] not in METRIC_KINDS:
                continue
            if (record_step := step_of(record)) is not None:
                step = record_step
            value: Any = record.get(name)
            if is_number(value):
                time = finite_or_none(record.get("time"))
                steps.append(step)
                values.append(value)
                times.append(math.nan if time is None else time)
                attempts.append(attempt)
        if not values:
            raise KeyError(f"run {self.name!r} has no metric {name!r}{did_you_mean(name, self.metrics)}")
        series = Series(
            steps=np.array(steps, dtype=np.int64),
            values=np.array(values, dtype=np.float64),
            times=np.array(times, dtype=np.float64),
            attempts=np.array(attempts, dtype=np.int64),
        )
        return _without_superseded(series, self._attempts) if overlap == "latest" else series

    def to_pandas(self, event: str | None = None) -> pd.DataFrame:
        """Return the records, all or those of one kind, as a wide DataFrame with an `attempt` column."""
        try:
            import pandas as pd
        except ImportError as error:
            raise ImportError("to_pandas() needs pandas: pip install 'tachograph[pandas]'") from error
        rows = []
        attempt = -1
        for record in read_records(self.folder.journal):
            attempt += record["event"] == "start" or attempt < 0
            if event is None or record["event"] == event:
                rows.append({**record, "attempt": attempt})
        return pd.DataFrame(rows)


def read(run: str | os.PathLike[str] | HasPath, log_dir: str | os.PathLike[str] | None = None) -> RunHistory:
    """Open a run by its folder, by its name inside `log_dir`, or by the object that `init` returned.

    Raises:
        RunNotFoundError: if there is no such run or its journal cannot be read.

    Example:
        >>> losses = tachograph.read("logs/greyjacket").series("train_loss").values
    """
    path = run if isinstance(run, (str, os.PathLike)) else run.path
    if path is None:
        raise RunNotFoundError("this run is not recorded, so there is nothing to read")
    return RunHistory(find_readable_run(path, log_dir))


def find_readable_run(run: str | os.PathLike[str], log_dir: str | os.PathLike[str] | None = None) -> RunFolder:
    """Find a run by its folder or by its name inside `log_dir`.

    Raises:
        RunNotFoundError: if there is no such run or its journal cannot be read.
    """
    folder = find_run(run, log_dir)
    if not any(os.access(path, os.R_OK) for path in (folder.journal, folder.compressed_journal)):
        raise RunNotFoundError(f"{folder.journal} cannot be read; check its permissions")
    return folder


def _without_superseded(series: Series, attempts: list[Attempt]) -> Series:
    """Drop the points of earlier attempts at steps that a later attempt repeated."""
    import numpy as np

    keep = np.ones(len(series.steps), dtype=bool)
    for attempt in attempts:
        if attempt.index > 0 and attempt.first_step is not None:
            keep &= ~((series.attempts < attempt.index) & (series.steps >= attempt.first_step))
    return Series(series.steps[keep], series.values[keep], series.times[keep], series.attempts[keep])
