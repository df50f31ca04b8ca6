"""Compare the column store with the journals, series by series: count, extremes, last value and a hash of all points.

The hash is the sum of a hash of each (step, value), so it does not depend on the order, and a repeated or a missing
point changes it. ClickHouse computes it with `intHash64`, and numpy with the same function here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tachograph.journal import JournalFollower, LogFolders, RunFolder
from tachograph.reader import batch_records
from tachograph.server.columns._client import quote
from tachograph.server.columns._inserter import rank_journals, run_key
from tachograph.server.columns._schema import StoreSchema
from tachograph.store import StoredRun, Tail, attempt_points

__all__ = ["StoreDifference", "verify_run", "verify_runs"]

_HASH = "intHash64(bitXor(intHash64(toUInt64(step)), reinterpretAsUInt64(reinterpretAsString(value))))"
_KINDS = {
    "metric": "String",
    "stream": "String",
    "attempt": "UInt16",
    "num": "UInt64",
    "num_finite": "UInt64",
    "low": "Float64",
    "high": "Float64",
    "latest": "Float64",
    "hash": "UInt64",
}


class _SeriesCheck(NamedTuple):
    """The numbers of a series that are compared."""

    num_points: int
    lowest: float | None
    highest: float | None
    last: float
    hash: int


class StoreDifference(NamedTuple):
    """A difference between the journal of a run and the column store."""

    run: str
    rank: int
    metric: str
    stream: str
    attempt: int
    what: str
    """num_points, lowest, highest, last or hash."""
    in_files: Any
    in_store: Any


def verify_runs(
    schema: StoreSchema, *log_dirs: str, runs: list[str] | None = None
) -> Iterator[tuple[str, list[StoreDifference]]]:
    """Yield the id of each run in log folders, and its differences; `runs` limits it to some ids."""
    verified_keys = set()
    for run in sorted(LogFolders(*log_dirs).find(), key=lambda run: run.id):
        if runs is not None and run.id not in runs:
            continue
        folder = RunFolder(run.path)
        key = run_key(folder.path, run.id)
        if key not in verified_keys:
            verified_keys.add(key)
            yield run.id, verify_run(schema, folder, run.id)


def verify_run(schema: StoreSchema, folder: RunFolder, name: str) -> list[StoreDifference]:
    """Return the differences of one run, in the journals of all its ranks."""
    key = run_key(folder.path, name)
    differences = []
    for rank, path in rank_journals(folder):
        file_checks = _check_run(folder) if rank == 0 else _check_journal(path)
        store_checks = _check_store(schema, key, rank)
        for metric, stream, attempt in sorted({*file_checks, *store_checks}):
            in_file, in_table = file_checks.get((metric, stream, attempt)), store_checks.get((metric, stream, attempt))
            for what in _SeriesCheck._fields:
                in_files, in_store = getattr(in_file, what, None), getattr(in_table, what, None)
                if repr(in_files) != repr(in_store):  # NaN equals NaN
                    differences.append(StoreDifference(name, rank, metric, stream, attempt, what, in_files, in_store))
    return differences


def _check_run(folder: RunFolder) -> dict[tuple[str, str, int], _SeriesCheck]:
    run = StoredRun(folder)
    run.refresh()
    return {
        (name, stream, attempt): _check_points(steps, values)
        for name in run.metric_names
        for stream, attempt, steps, values in run.recorded_points(name)
    }


def _check_journal(path: Path) -> dict[tuple[str, str, int], _SeriesCheck]:
    """Read the journal of a rank other than 0, of which the file store has no columns."""
    tail, attempt = Tail(), -1
    follower = JournalFollower(path)
    while records := follower.poll_block():
        for batch in batch_records(records):
            if batch.event == "start":
                tail.begin_attempt()
                attempt += len(batch.records)
            attempt = max(0, attempt)
            tail.add(batch, attempt)
    checks = {}
    for stream, name in tail.series_keys:
        for number in range(attempt + 1):
            points = attempt_points([tail], stream, name, number)
            if points is not None:
                checks[name, stream, number] = _check_points(*points)
    return checks


def _check_points(steps: Any, values: Any) -> _SeriesCheck:
    finite = values[np.isfinite(values)]
    return _SeriesCheck(
        len(values),
        float(finite.min()) if len(finite) else None,
        float(finite.max()) if len(finite) else None,
        float(values[-1]),
        _hash_points(steps, values),
    )


def _check_store(schema: StoreSchema, run_id: str, rank: int) -> dict[tuple[str, str, int], _SeriesCheck]:
    columns = schema.client.columns(
        "SELECT metric, stream, attempt, count() AS num, countIf(isFinite(value)) AS num_finite,"
        " minIf(value, isFinite(value)) AS low, maxIf(value, isFinite(value)) AS high,"
        f" argMax(value, offset) AS latest, sum({_HASH}) AS hash"
        f" FROM {schema.table('points')} FINAL WHERE run_id = {quote(run_id)} AND rank = {rank}"
        " GROUP BY metric, stream, attempt",
        _KINDS,
    )
    rows = zip(*(each if isinstance(each, list) else each.tolist() for each in columns.values()), strict=True)
    return {
        (metric, stream, attempt): _SeriesCheck(
            num, low if num_finite else None, high if num_finite else None, last, digest
        )
        for metric, stream, attempt, num, num_finite, low, high, last, digest in rows
    }


def _hash_points(steps: Any, values: Any) -> int:
    values = np.where(np.isnan(values), math.nan, values)  # one of the many NaN
    words = _hash(steps.astype(np.int64).view(np.uint64)) ^ np.ascontiguousarray(values, "<f8").view(np.uint64)
    return int(_hash(words).sum(dtype=np.uint64))


def _hash(numbers: Any) -> Any:
    """Return ClickHouse's `intHash64` of some numbers."""
    hashes = numbers ^ np.uint64(0x4CF2D2BAAE6DA887)
    hashes ^= hashes >> np.uint64(33)
    hashes *= np.uint64(0xFF51AFD7ED558CCD)
    hashes ^= hashes >> np.uint64(33)
    hashes *= np.uint64(0xC4CEB9FE1A85EC53)
    return hashes ^ (hashes >> np.uint64(33))
