"""Many long runs with one metric, in the formats of all tools.

Writing 20 million points one by one would take minutes. So there are only a few different curves, and runs share them:
all tools read, send and draw a shared curve once per run.
"""

from __future__ import annotations

import shutil
import struct
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.child import NOT_INSTALLED, ChildError, last_line, run
from benchmarks.dashboard.data import encode_points, start_line

__all__ = ["METRIC", "make_runs", "make_short_runs", "run_names"]

METRIC = "train_loss"
_NUM_CURVES = 8
_BEGAN_S = 1.7e9
_SEC_PER_STEP = 0.1


def run_names(num_runs: int) -> list[str]:
    """Return the names of the runs."""
    return [f"run-{index:03d}" for index in range(num_runs)]


def make_runs(tool: str, folder: Path, num_runs: int, num_points: int) -> float:
    """Write runs in the format of a tool in a child process; return how long it took.

    Raises:
        ChildError: if it failed.
    """
    began_s = time.monotonic()
    done = run(str(folder), "-m", "benchmarks.dashboard.overlay_data", tool, str(num_runs), str(num_points))
    if "ModuleNotFoundError" in done.stderr:
        raise ChildError(NOT_INSTALLED)
    if done.returncode != 0:
        raise ChildError(last_line(done.stderr))
    return time.monotonic() - began_s


def make_short_runs(logs: Path, num_runs: int) -> None:
    """Write runs of ten points for our dashboard, which were started before the others."""
    lines = encode_points([1.0] * 10, 0, _BEGAN_S - 1e6)
    end = msgspec.json.encode({"event": "end", "time": _BEGAN_S - 9e5, "status": "finished"}) + b"\n"
    for index in range(num_runs):
        folder = logs / f"short-{index:05d}"
        folder.mkdir(parents=True)
        (folder / "metrics.jsonl").write_bytes(start_line(folder.name, _BEGAN_S - 1e6 + index) + lines + end)


def _curve(index: int, num_points: int) -> list[float]:
    """Return a loss that falls, with noise."""
    import numpy as np

    source = np.random.default_rng(index)
    falling = 8 * np.exp(-np.arange(num_points) / (num_points / 20))
    values: list[float] = (2 + 0.2 * index + falling + source.normal(0, 0.15, num_points)).tolist()
    return values


def _curves(num_runs: int, num_points: int) -> Iterator[tuple[list[float], list[str]]]:
    """Yield each curve and the runs that have it."""
    names = run_names(num_runs)
    for index in range(min(num_runs, _NUM_CURVES)):
        yield _curve(index, num_points), names[index::_NUM_CURVES]


def _write_tachograph(num_runs: int, num_points: int) -> None:
    end_s = _BEGAN_S + num_points * _SEC_PER_STEP
    end = msgspec.json.encode({"event": "end", "time": end_s, "status": "finished"}) + b"\n"
    for values, names in _curves(num_runs, num_points):
        lines = encode_points(values, 0, _BEGAN_S)
        for name in names:
            folder = Path("logs", name)
            folder.mkdir(parents=True)
            (folder / "metrics.jsonl").write_bytes(start_line(name, _BEGAN_S, max_steps=num_points) + lines + end)


def _write_tensorboard(num_runs: int, num_points: int) -> None:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.compat.proto.tensor_pb2 import TensorProto
    from tensorboard.plugins.scalar.metadata import create_summary_metadata

    metadata = create_summary_metadata("", "")
    first = Event(wall_time=_BEGAN_S, file_version="brain.Event:2")
    for values, names in _curves(num_runs, num_points):
        events = [first.SerializeToString()]
        for step, value in enumerate(values):
            extra = {"metadata": metadata} if step == 0 else {}
            scalar = Summary.Value(tag=METRIC, tensor=TensorProto(dtype=1, float_val=[value]), **extra)
            event = Event(wall_time=_BEGAN_S + step * _SEC_PER_STEP, step=step, summary=Summary(value=[scalar]))
            events.append(event.SerializeToString())
        data = _frame_records(events)
        for name in names:
            folder = Path("events", name)
            folder.mkdir(parents=True)
            (folder / f"events.out.tfevents.{_BEGAN_S:.0f}.bench").write_bytes(data)


def _frame_records(records: list[bytes]) -> bytes:
    """Return records in the framing of event files: length, its checksum, data, its checksum.

    The writer of TensorBoard computes one checksum after the other in Python, which takes minutes for
    a million events.
    """
    import numpy as np

    by_length: dict[int, list[int]] = {}
    for index, record in enumerate(records):
        by_length.setdefault(len(record), []).append(index)
    framed = [b""] * len(records)
    for length, indexes in by_length.items():
        header = struct.pack("<Q", length)
        header += struct.pack("<I", int(_masked_crcs(np.frombuffer(header, np.uint8)[np.newaxis])[0]))
        data = np.frombuffer(b"".join(records[index] for index in indexes), np.uint8).reshape(-1, length)
        for index, checksum in zip(indexes, _masked_crcs(data).astype("<u4"), strict=True):
            framed[index] = header + records[index] + checksum.tobytes()
    return b"".join(framed)


def _masked_crcs(rows: Any) -> Any:
    """Return the masked CRC-32C of each row of bytes."""
    import numpy as np

    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, np.uint32(0x82F63B78), np.uint32(0)) ^ (table >> np.uint32(1))
    crcs = np.full(len(rows), 0xFFFFFFFF, np.uint32)
    for column in rows.T:
        crcs = table[(crcs ^ column) & np.uint32(255)] ^ (crcs >> np.uint32(8))
    crcs ^= np.uint32(0xFFFFFFFF)
    return ((crcs >> np.uint32(15)) | (crcs << np.uint32(17))) + np.uint32(0xA282EAD8)


def _write_trackio(num_runs: int, num_points: int) -> None:
    from trackio.sqlite_storage import SQLiteStorage

    shutil.rmtree("trackio", ignore_errors=True)  # from a smaller size
    for values, names in _curves(num_runs, num_points):
        rows = [{METRIC: value} for value in values]
        for name in names:
            SQLiteStorage.bulk_log("bench", name, rows, steps=list(range(num_points)))


_WRITERS: dict[str, Callable[[int, int], None]] = {
    "tachograph": _write_tachograph,
    "tensorboard": _write_tensorboard,
    "trackio": _write_trackio,
}


if __name__ == "__main__":
    _WRITERS[sys.argv[1]](int(sys.argv[2]), int(sys.argv[3]))
