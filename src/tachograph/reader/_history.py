"""`tachograph.read`: everything a finished, running or crashed run recorded."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from tachograph.exceptions import RunNotFoundError, did_you_mean
from tachograph.journal._folder import RunFolder, find_run
from tachograph.journal._follower import JournalFollower, read_records
from tachograph.journal._liveness import RunState
from tachograph.reader._digest import Attempt, RunDigest, batch_records, time_of
from tachograph.reader._metrics import MetricSummaries, MetricSummary
from tachograph.reader._ranks import RankView, read_ranks
from tachograph.reader._spans import RecordedSpan, SpanTreeBuilder, in_order
from tachograph.records import METRIC_KINDS, finite_or_none, is_number, step_of

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pandas as pd

__all__ = ["RunHistory", "Series", "read"]


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


class RunHistory(RunDigest):
    """A run on disk, read only as far as it is asked.

    Safe while the run is being written, on a read-only folder, and after a crash. `refresh` looks for what is new.

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
        self.refresh()

    def __repr__(self) -> str:
        return f"RunHistory({self.name!r}, {self.state}, {self._counts.get('step', 0)} step records)"

    def refresh(self) -> int:
        """Take in what was appended since; return the number of new records."""
        num_new = 0
        while records := self._follower.poll_block():
            if self._follower.num_restarts != self._num_restarts:  # the file was replaced: begin again
                self._num_restarts = self._follower.num_restarts
                self._forget()
                self._metrics = MetricSummaries()
            for alike in batch_records(records):
                self.take(alike)
                self._metrics.take(alike)
            num_new += len(records)
        return num_new

    @property
    def metrics(self) -> dict[str, MetricSummary]:
        """A summary of each metric that `series` knows, in order of appearance."""
        return self._metrics.summaries

    def spans(self, name: str | None = None) -> list[RecordedSpan]:
        """Return the spans, all or of one name: each after the one around it, and otherwise as they began."""
        book = SpanTreeBuilder()
        found: list[RecordedSpan] = []
        last_time = 0.0
        for record in read_records(self.folder.journal):
            found += book.take(record, last_time)
            last_time = max(last_time, time_of(record))
        if self.state in {RunState.RUNNING, RunState.STALE}:
            for span in book.open_spans():
                span.status = "open"
                found.append(span)
        else:
            found += book.close(last_time)
        return [span for span in in_order(found) if name is None or span.name == name]

    @property
    def ranks(self) -> list[RankView]:
        """What each process of a distributed job recorded of itself, rank 0 first; empty for a job of one process."""
        return read_ranks(self.folder)

    @property
    def num_bad_lines(self) -> int:
        """Lines that could not be read, such as one that a dying process left half written."""
        return self._follower.num_bad_lines

    def records(self, event: str | None = None) -> Iterator[dict[str, Any]]:
        """Yield the records, all or of one kind, from the file as it is now."""
        for record in read_records(self.folder.journal):
            if event is None or record["event"] == event:
                yield record

    def completions(self, table: str | None = None) -> list[dict[str, Any]]:
        """Return the samples that were recorded with `Completions`, all or of one table, oldest first."""
        return [
            row
            for record in self.records("completions")
            if table in (None, record.get("table")) and isinstance(record.get("rows"), list)
            for row in record["rows"]
            if isinstance(row, dict)
        ]

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
            attempt += record["event"] == "start" or attempt < 0  # a journal may have lost its first line
            if record["event"] not in METRIC_KINDS:
                continue
            if (known := step_of(record)) is not None:
                step = known
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
            attempt += record["event"] == "start" or attempt < 0
            if event is None or record["event"] == event:
                rows.append({**record, "attempt": attempt})
        return pd.DataFrame(rows)


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


def _without_overtaken(series: Series, attempts: list[Attempt]) -> Series:
    """Drop the points of earlier attempts at steps that a later attempt went back to."""
    import numpy as np

    keep = np.ones(len(series.steps), dtype=bool)
    for attempt in attempts:
        if attempt.index > 0 and attempt.first_step is not None:
            keep &= ~((series.attempts < attempt.index) & (series.steps >= attempt.first_step))
    return Series(series.steps[keep], series.values[keep], series.times[keep], series.attempts[keep])
