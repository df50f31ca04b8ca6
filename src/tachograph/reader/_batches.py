"""Group consecutive records with the same fields, so that long journals can be processed by column.

Most records of a long journal are plain steps with the same field names. Reading a metric from a list of such records
is several times faster than walking through each record.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from tachograph.records import finite_or_none, step_of

__all__ = ["RecordBatch", "batch_records", "time_of", "times_of"]


class RecordBatch(NamedTuple):
    """Consecutive records of one kind with the same field names in the same order."""

    names: tuple[str, ...]
    records: list[dict[str, Any]]
    are_plain_steps: bool
    """Whether the records are many numbered steps without windows, which can be processed by column."""

    @property
    def event(self) -> str:
        """The kind of the records."""
        event: str = self.records[0]["event"]
        return event


def batch_records(records: Iterable[dict[str, Any]]) -> Iterator[RecordBatch]:
    """Group consecutive records of one kind with the same field names."""
    for key, group in itertools.groupby(records, key=lambda record: (record["event"], *record)):
        batch = list(group)
        is_plain = key[0] == "step" and len(batch) > 8 and "global_step" in key and "window/sec" not in key
        is_plain = is_plain and finite_or_none(batch[0].get("time")) is not None  # the first may open an attempt
        yield RecordBatch(key[1:], batch, is_plain and all(step_of(record) is not None for record in batch))


def times_of(records: list[dict[str, Any]]) -> list[float]:
    """Return the time of each record, or NaN if it has none."""
    times = [record.get("time") for record in records]
    if set(map(type, times)) == {float} and math.isfinite(sum(times)):  # type: ignore[arg-type]
        return times  # type: ignore[return-value]
    return [math.nan if (time_s := finite_or_none(value)) is None else time_s for value in times]


def time_of(record: dict[str, Any]) -> float:
    """Return the time of a record, or 0 if it has none."""
    return finite_or_none(record.get("time")) or 0.0
