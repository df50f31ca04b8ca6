"""Read the rows of a table from journals, in batches of records with the same fields.

A `JournalSnapshot` is read as often as necessary and always has the same records, also while the run is being recorded.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

from tachograph.exceptions import TableExportError
from tachograph.journal import JournalFollower, RunFolder, stat_journal
from tachograph.reader import NOT_METRICS, RecordBatch, batch_records, set_step_metric
from tachograph.records import METRIC_DEFINED, METRIC_KINDS, finite_or_none, is_number, step_of

__all__ = ["JournalSnapshot", "RowBatch"]


class RowBatch(NamedTuple):
    """Consecutive rows of one kind; each row has at least one value."""

    attempt: int
    kind: str
    steps: list[int | None]
    times: list[float | None]
    values: dict[str, list[float | None]]
    """The values of each metric, one per row; None if it is missing."""


class JournalSnapshot:
    """The records that a journal contains when the snapshot is made."""

    def __init__(self, folder: RunFolder) -> None:
        self._path = folder.journal
        with self._reporting_errors():
            self._identity = self._identify()
            self._end = JournalFollower.complete_bytes(self._path)
        self.step_metrics: dict[str, str] = {}
        """The metrics with another metric as their x axis, and this metric; once `metric_kinds` was called."""
        self.num_bad_lines = 0
        """The number of unreadable lines, once the journal was read."""

    def metric_kinds(self) -> dict[str, set[str]]:
        """Return the names of all metrics in order of appearance, each with the kinds of the records that have it."""
        kinds: dict[str, set[str]] = {}
        for batch in self._batches():
            if batch.event == "event":
                for record in batch.records:
                    if record.get("name") == METRIC_DEFINED:
                        set_step_metric(self.step_metrics, record)
            if batch.event not in METRIC_KINDS:
                continue
            for name in batch.names:
                is_known = name in NOT_METRICS or batch.event in kinds.get(name, ())
                if not is_known and any(is_number(record[name]) for record in batch.records):
                    kinds.setdefault(name, set()).add(batch.event)
        return kinds

    def rows(self, metrics: Collection[str], kinds: Collection[str], axes: Collection[str] = ()) -> Iterator[RowBatch]:
        """Yield the records of some kinds that have at least one of the metrics, and the axes in these records.

        A record without a step gets the step of the record before it, as in `RunHistory.series`.
        """
        attempt = -1
        step: int | None = None
        for batch in self._batches():
            if batch.event == "start":
                attempt += len(batch.records)
                continue
            attempt = max(attempt, 0)  # the `start` record may be missing
            if batch.event not in METRIC_KINDS:
                continue
            steps: list[int | None] = []
            for record in batch.records:
                step = step if (record_step := step_of(record)) is None else record_step
                steps.append(step)
            if batch.event in kinds:
                times = [finite_or_none(record.get("time")) for record in batch.records]
                names = [name for name in batch.names if name in metrics or name in axes]
                columns = {name: _numbers(name, batch.records) for name in names}
                yield from _without_empty_rows(RowBatch(attempt, batch.event, steps, times, columns), metrics)

    def _batches(self) -> Iterator[RecordBatch]:
        follower = JournalFollower(self._path, end=self._end)
        while True:
            with self._reporting_errors():
                records = follower.poll_block()
            if follower.num_restarts or not records:
                break
            yield from batch_records(records)
        with self._reporting_errors():
            is_replaced = follower.num_restarts or follower.offset != self._end or self._identify() != self._identity
        if is_replaced:
            raise TableExportError(f"{self._path} was replaced while it was read; export it again")
        self.num_bad_lines = follower.num_bad_lines

    def _identify(self) -> tuple[int, int]:
        file_status = stat_journal(self._path)
        return file_status.st_dev, file_status.st_ino

    @contextlib.contextmanager
    def _reporting_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise TableExportError(f"cannot read {self._path}: {error.strerror}") from error


def _numbers(name: str, records: list[dict[str, Any]]) -> list[float | None]:
    values = [record[name] for record in records]
    if set(map(type, values)) == {float}:
        return values
    return [value if is_number(value) else None for value in values]


def _without_empty_rows(batch: RowBatch, metrics: Collection[str]) -> Iterator[RowBatch]:
    columns = {name: values for name, values in batch.values.items() if any(value is not None for value in values)}
    metric_columns = [values for name, values in columns.items() if name in metrics]
    if not metric_columns:
        return
    if any(None not in values for values in metric_columns):
        yield batch._replace(values=columns)
        return
    has_value = [any(value is not None for value in row) for row in zip(*metric_columns, strict=True)]
    yield RowBatch(
        batch.attempt,
        batch.kind,
        [step for step, is_kept in zip(batch.steps, has_value, strict=True) if is_kept],
        [time for time, is_kept in zip(batch.times, has_value, strict=True) if is_kept],
        {
            name: [value for value, is_kept in zip(values, has_value, strict=True) if is_kept]
            for name, values in columns.items()
        },
    )
