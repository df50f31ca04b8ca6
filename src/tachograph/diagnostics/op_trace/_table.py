"""Read a table of operations: one row per operation of a worker, as CSV or Parquet."""

from __future__ import annotations

import csv
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from tachograph.exceptions import ConfigError

__all__ = ["OpTable", "read_ops"]

_COLUMNS = {
    "dp": ("dp_rank", "dp", "data_parallel_rank"),
    "stage": ("stage", "pp_rank", "pp", "pipeline_rank"),
    "step": ("step", "iteration"),
    "kind": ("optype", "op_type", "op", "type"),
    "start": ("start_ts", "start", "start_time", "ts"),
    "duration": ("duration", "dur"),
    "rank": ("rank", "global_rank"),
    "chunk": ("gmc", "global_chunk"),
    "local_chunk": ("mc", "chunk"),
    "micro_batch": ("mb_id", "micro_batch", "microbatch", "mb"),
    "number": ("seq_id", "seq"),
}
"""The names that each column may have."""
_REQUIRED = ("dp", "stage", "step", "kind", "start", "duration")
_COMMUNICATION = ("send", "recv", "reduce", "gather", "scatter", "broadcast", "all-to-all", "barrier")
_MAX_ROWS = 20_000_000
_Ints = npt.NDArray[np.int64]
_Floats = npt.NDArray[np.float64]


class OpTable(msgspec.Struct):
    """The forward and backward computations of all workers, in complete steps only."""

    dp: _Ints
    """The data-parallel rank of the worker."""
    stage: _Ints
    rank: _Ints
    step: _Ints
    chunk: _Ints
    """The part of the model, counted from its input. Without virtual stages it is the stage."""
    micro_batch: _Ints
    is_backward: npt.NDArray[np.bool_]
    start_s: _Floats
    duration_s: _Floats
    num_dropped_steps: int = 0
    """Steps that lack operations of some worker, such as the first and the last one of a trace."""

    def __len__(self) -> int:
        return len(self.step)


def read_ops(path: str | Path) -> OpTable:
    """Read a table of operations.

    Raises:
        ConfigError: The file cannot be read, lacks a column, or has no complete step.
    """
    table = _read_columns(Path(path))
    kinds = np.char.replace(np.char.lower(table["kind"].astype(str)), "_", "-")
    is_communication = np.zeros(len(kinds), dtype=bool)
    for word in _COMMUNICATION:
        is_communication |= np.char.find(kinds, word) >= 0
    is_forward = (np.char.find(kinds, "forward") >= 0) & ~is_communication
    is_backward = (np.char.find(kinds, "backward") >= 0) & ~is_communication
    rows = np.flatnonzero(is_forward | is_backward)
    if len(rows) == 0:
        names = ", ".join(sorted(set(kinds[:10_000].tolist()))[:8])
        raise ConfigError(f"{path}: no forward or backward computation among the operations ({names})")
    start_s, duration_s = _seconds(table["start"][rows], table["duration"][rows])
    ops = OpTable(
        dp=table["dp"][rows].astype(np.int64),
        stage=table["stage"][rows].astype(np.int64),
        rank=(table["rank"] if "rank" in table else np.full(len(kinds), -1))[rows].astype(np.int64),
        step=table["step"][rows].astype(np.int64),
        chunk=_chunks(table, rows),
        micro_batch=np.zeros(len(rows), dtype=np.int64),
        is_backward=is_backward[rows],
        start_s=start_s,
        duration_s=duration_s,
    )
    ops.micro_batch = _micro_batches(table, rows, ops)
    return _complete_steps(ops, path)


def _read_columns(path: Path) -> dict[str, npt.NDArray[Any]]:
    try:
        columns = _read_parquet(path) if path.suffix in (".parquet", ".pq") else _read_csv(path)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot read the table of operations: {error}") from None
    lower = {name.strip().lower(): values for name, values in columns.items()}
    table = {}
    for column, names in _COLUMNS.items():
        name = next((name for name in names if name in lower), None)
        if name is not None:
            table[column] = lower[name]
        elif column in _REQUIRED:
            raise ConfigError(f"{path}: no column {names[0]!r}; the table has {', '.join(sorted(columns)[:20])}")
    try:
        return {
            column: values if column == "kind" else np.nan_to_num(values.astype(np.float64), nan=-1.0)
            for column, values in table.items()
        }
    except ValueError as error:
        raise ConfigError(f"{path}: a column of numbers has another value: {error}") from None


def _read_csv(path: Path) -> dict[str, npt.NDArray[Any]]:
    with path.open(encoding="utf-8", newline="") as file:
        rows = csv.reader(file)
        names = next(rows, [])
        values = [row for _, row in zip(range(_MAX_ROWS), rows, strict=False) if len(row) == len(names)]
    if not values:
        raise ValueError("it has no rows")
    columns = np.array(values, dtype=str).T
    return {name: np.where(column == "", "nan", column) for name, column in zip(names, columns, strict=True)}


def _read_parquet(path: Path) -> dict[str, npt.NDArray[Any]]:
    try:
        from pyarrow import parquet
    except ImportError:
        raise ConfigError(f"{path}: reading Parquet needs pyarrow: pip install 'tachograph[parquet]'") from None
    wanted = {name for names in _COLUMNS.values() for name in names}
    file = parquet.ParquetFile(path)
    if file.metadata.num_rows > _MAX_ROWS:
        raise ValueError(f"it has more than {_MAX_ROWS:,} rows")
    names = [name for name in file.schema_arrow.names if name.strip().lower() in wanted]
    table = file.read(columns=names) if names else file.schema_arrow.empty_table()
    return {name: np.asarray(table[name].to_numpy(zero_copy_only=False)) for name in names}


def _seconds(start: _Floats, duration: _Floats) -> tuple[_Floats, _Floats]:
    """Return times in seconds: as times since 1970 their size tells the unit, and a step never takes hours."""
    largest = float(np.max(np.abs(start)))
    unit_s = next((unit for limit, unit in ((1e17, 1e-9), (1e14, 1e-6), (1e11, 1e-3)) if largest > limit), 1.0)
    if unit_s == 1.0 and largest < 1e9:  # not since 1970
        typical = float(np.median(duration))
        # A computation takes a millisecond to a few seconds.
        unit_s = next((unit for limit, unit in ((2e6, 1e-9), (2e3, 1e-6), (5.0, 1e-3)) if typical > limit), 1.0)
    return (start - np.min(start)) * unit_s, np.maximum(duration, 0.0) * unit_s


def _chunks(table: dict[str, npt.NDArray[Any]], rows: _Ints) -> _Ints:
    stage = table["stage"][rows].astype(np.int64)
    if "chunk" in table and np.all(table["chunk"][rows] >= 0):
        return np.asarray(table["chunk"][rows].astype(np.int64))
    if "local_chunk" in table and np.all(table["local_chunk"][rows] >= 0):
        return np.asarray(table["local_chunk"][rows].astype(np.int64) * (int(stage.max()) + 1) + stage)
    return stage


def _micro_batches(table: dict[str, npt.NDArray[Any]], rows: _Ints, ops: OpTable) -> _Ints:
    """Return the micro-batch of each operation; without a column, they are numbered in the order of their starts."""
    if "micro_batch" in table and np.all(table["micro_batch"][rows] >= 0):
        return np.asarray(table["micro_batch"][rows].astype(np.int64))
    order = np.lexsort((ops.start_s, ops.is_backward, ops.chunk, ops.dp, ops.step))
    keys = np.stack([ops.step, ops.dp, ops.chunk, ops.is_backward.astype(np.int64)])[:, order]
    is_first = np.ones(len(order), dtype=bool)
    is_first[1:] = np.any(keys[:, 1:] != keys[:, :-1], axis=0)
    first = np.maximum.accumulate(np.where(is_first, np.arange(len(order)), 0))
    numbers = np.empty(len(order), dtype=np.int64)
    numbers[order] = np.arange(len(order)) - first
    return numbers


def _complete_steps(ops: OpTable, path: str | Path) -> OpTable:
    """Leave out steps with another number of operations than most, such as those at the ends of a trace."""
    steps, counts = np.unique(ops.step, return_counts=True)
    usual = Counter(counts.tolist()).most_common(1)[0][0]
    whole = steps[counts == usual]
    workers = len(np.unique(np.stack([ops.dp, ops.stage]), axis=1).T)
    if len(whole) == 0 or workers < 2:
        raise ConfigError(f"{path}: nothing to compare: {len(whole)} complete steps of {workers} workers")
    keep = np.isin(ops.step, whole)
    columns = {
        name: getattr(ops, name)[keep] for name in ops.__struct_fields__ if name != "num_dropped_steps"
    }  # fmt: skip
    return OpTable(**columns, num_dropped_steps=len(steps) - len(whole))
