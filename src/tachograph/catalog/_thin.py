"""Thin the journal of an old run: windows of many steps instead of single steps.

The new journal has what ``log_every=N`` would have written: each metric with its latest value, and with mean, lowest
and highest value where it varied. So every reader understands it and no extreme is lost. All other records are copied
as they are; the first `start` record gets ``thinned_from`` with size and hash of the old journal, and the window.

The old journal goes to the trash, as a run of the same name that has nothing but its journal. It gets its name there
before the new journal takes its place, by one rename. Cursors of sinks are set to the end of the new journal, which is
what they said about the old one; caches and ``metrics.csv`` are removed.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import re
from collections.abc import Iterator
from typing import Any

import msgspec

from tachograph._base.files import create_file, move_file, read_small, replace_file, temporary_path, write_all
from tachograph._base.typed import decode_json
from tachograph.catalog._trash import trash_journal
from tachograph.journal import RunFolder, lock_run_folder, open_journal, read_heartbeat, stat_journal
from tachograph.records import decode, encode, is_number, step_of

__all__ = ["StepThinner", "thin_run"]

_BLOCK_BYTES = 1 << 20
_MAX_LINE_BYTES = 64 << 20
_MAX_CURSOR_BYTES = 1 << 20
_LOCATION = frozenset({"event", "time", "global_step", "window_steps"})
_WITHOUT_RANGE = frozenset({"epoch", "nan_inf_detected"})
_MEANS = frozenset({"sec_per_step", "samples_per_sec"})
"""Fields whose value in a window is the mean."""
_KIND = re.compile(rb'\{"event":"([a-z_]+)"')
_DECODED_KINDS = frozenset({b"step", b"start", b"end", b"epoch", b"validation", b"test", b"control_change"})
_RANGE = ("mean", "min", "max", "nonfinite")


class _Range:
    __slots__ = ("count", "high", "low", "num_not_finite", "total")

    def __init__(self) -> None:
        self.count = self.num_not_finite = 0
        self.total = 0.0
        self.low, self.high = math.inf, -math.inf

    def add(self, record: dict[str, Any], name: str, value: float, num_steps: int) -> None:
        """Add a value, or the values of a window of steps."""
        num_not_finite = record.get(f"{name}/nonfinite", 0 if math.isfinite(value) else num_steps)
        count = max(0, num_steps - num_not_finite) if is_number(num_not_finite) else num_steps
        self.num_not_finite += num_steps - count
        mean = record.get(f"{name}/mean", value)
        if not count or not is_number(mean) or not math.isfinite(mean):
            return
        self.count += count
        self.total += mean * count
        for bound in (record.get(f"{name}/min", value), record.get(f"{name}/max", value), value):
            if is_number(bound) and math.isfinite(bound):
                self.low, self.high = min(self.low, bound), max(self.high, bound)


class StepThinner:
    """Turns the lines of a journal into the lines of a thinned one, in order."""

    def __init__(self, window: int) -> None:
        self._window = window
        self._due_step: int | None = None
        self._clear()

    def _clear(self) -> None:
        self._num_lines = self._num_steps = 0
        self._line = b""
        self._step = 0
        self._time: Any = None
        self._latest: dict[str, Any] = {}
        self._ranges: dict[str, _Range] = {}

    def add(self, line: bytes) -> Iterator[bytes]:
        """Add a line; yield the lines that are complete now."""
        kind = _KIND.match(line)
        if kind is not None and kind[1] not in _DECODED_KINDS:  # also in the middle of a window, as it was recorded
            yield line
            return
        try:
            record = decode(line)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            yield line
            return
        step = step_of(record)
        if record["event"] != "step" or step is None or "window/sec" in record:
            if record["event"] in {"start", "end", "control_change"} or step is None:
                yield from self.finish()
            if record["event"] == "start":
                self._due_step = None
            yield line
            return
        if self._num_lines and step != self._step and (self._is_due() or step < self._step):
            yield from self.finish()
        if not self._num_lines and self._due_step is not None and step < self._due_step - self._window:
            self._due_step = None  # the loop went back
        self._add_step(record, step, line)

    def _is_due(self) -> bool:
        return self._due_step is None or self._step >= self._due_step

    def _add_step(self, record: dict[str, Any], step: int, line: bytes) -> None:
        window_steps = record.get("window_steps")
        is_window = type(window_steps) is int and window_steps > 0
        num_steps = window_steps if is_window else 1
        self._num_steps += num_steps if is_window or step != self._step or not self._num_lines else 0  # type: ignore[operator]
        self._num_lines += 1
        self._line, self._step, self._time = line, step, record.get("time")
        for name, value in record.items():
            if name in _LOCATION:
                continue
            base, _, last = name.rpartition("/")
            if is_window and last in _RANGE and base in record:
                continue  # read together with the metric
            if name == "nan_inf_detected":
                self._latest[name] = bool(value) or self._latest.get(name, False)
                continue
            self._latest[name] = value
            if name not in _WITHOUT_RANGE and is_number(value):
                self._ranges.setdefault(name, _Range()).add(record, name, float(value), num_steps)  # type: ignore[arg-type]

    def finish(self) -> Iterator[bytes]:
        """Yield the line of the window, if it has steps."""
        if not self._num_lines:
            return
        if self._num_lines == 1:
            line = self._line
        else:
            record = {"event": "step", "time": self._time, "global_step": self._step, "window_steps": self._num_steps}
            for name, value in self._latest.items():
                value_range = self._ranges.get(name)
                if value_range is None:
                    record[name] = value
                    continue
                mean = value_range.total / value_range.count if value_range.count else math.nan
                record[name] = mean if name in _MEANS and value_range.count else value
                if value_range.count and (
                    value_range.low != value_range.high or (value_range.num_not_finite and value_range.low != value)
                ):
                    record |= {f"{name}/mean": mean, f"{name}/min": value_range.low, f"{name}/max": value_range.high}
                if value_range.num_not_finite:
                    record[f"{name}/nonfinite"] = value_range.num_not_finite
            line = encode(record)
        self._due_step = (self._step // self._window + 1) * self._window
        self._clear()
        yield line


def thin_run(folder: RunFolder, log_dir: str, name: str, window: int) -> tuple[int, int] | None:
    """Thin the journal of an ended run; return its sizes before and after, or None if nothing was changed.

    The caller makes sure that the run has an `end`, and that no sink lags.

    Raises:
        OSError: if it cannot be read or written. Then nothing was changed.
    """
    before = stat_journal(folder.journal)
    is_compressed = not folder.journal.exists()
    temporary = temporary_path(folder.journal)
    descriptor = create_file(temporary, below=folder.path, mode=before.st_mode & 0o777)
    try:
        try:
            thinned_sizes = _write_thinned(folder, descriptor, window)
            os.fsync(descriptor)
            new_bytes = os.fstat(descriptor).st_size
        finally:
            os.close(descriptor)
        if thinned_sizes is None or new_bytes >= thinned_sizes[0]:
            return None
        os.utime(temporary, ns=(before.st_mtime_ns, before.st_mtime_ns))
        with lock_run_folder(folder) as is_ours:
            now = stat_journal(folder.journal)
            if not is_ours or (now.st_ino, now.st_size) != (before.st_ino, before.st_size):
                return None
            trash_journal(log_dir, name, folder.compressed_journal if is_compressed else folder.journal)
            _move_cursors(folder, new_bytes, thinned_sizes[1])
            move_file(temporary, folder.journal, below=folder.path)
            for path in (folder.compressed_journal, folder.csv, folder.csv_cursor, *folder.cache.glob("v*.seg")):
                path.unlink(missing_ok=True)
        return before.st_size, new_bytes
    finally:
        temporary.unlink(missing_ok=True)


def _write_thinned(folder: RunFolder, descriptor: int, window: int) -> tuple[int, int] | None:
    """Write the new journal; return the plain bytes of the old one, and where the last `start` is in the new one."""
    digest = hashlib.blake2b(digest_size=16)
    size = 0
    with open_journal(folder.journal) as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
            size += len(block)
        file.seek(0)
        first = file.readline(_MAX_LINE_BYTES)
        try:
            start = decode(first)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            return None
        earlier = start.get("thinned_from")
        if start["event"] != "start" or (isinstance(earlier, dict) and earlier.get("window", 0) >= window):
            return None
        start["thinned_from"] = {"bytes": size, "hash": digest.hexdigest(), "window": window}
        if earlier is not None:
            start["thinned_from"]["earlier"] = earlier
        buffer = bytearray(encode(start) + b"\n")
        thinner, offset, start_bytes = StepThinner(window), 0, 0
        while line := file.readline(_MAX_LINE_BYTES):
            for thinned_line in thinner.add(line.rstrip(b"\n")):
                if thinned_line.startswith(b'{"event":"start"'):
                    start_bytes = offset + len(buffer)
                buffer += thinned_line + b"\n"
            if len(buffer) >= _BLOCK_BYTES:
                offset += write_all(descriptor, bytes(buffer))
                buffer.clear()
        for thinned_line in thinner.finish():
            buffer += thinned_line + b"\n"
        write_all(descriptor, bytes(buffer))
    return size, start_bytes


def _move_cursors(folder: RunFolder, new_bytes: int, start_bytes: int) -> None:
    """Set the cursors of sinks, which are at the end of the old journal, to the end of the new one."""
    for path in (*folder.private.glob("sink-*.json"), folder.private / "notify.json"):
        with contextlib.suppress(OSError, msgspec.MsgspecError):
            cursor = decode_json(read_small(path, _MAX_CURSOR_BYTES, below=folder.path), dict[str, Any])
            if "journal_bytes" in cursor:
                replace_file(path, msgspec.json.encode({**cursor, "journal_bytes": new_bytes}), below=folder.path)
    heartbeat = read_heartbeat(folder.heartbeat)
    if heartbeat is not None:
        new_heartbeat = msgspec.structs.replace(heartbeat, journal_bytes=new_bytes, start_bytes=start_bytes)
        replace_file(folder.heartbeat, msgspec.json.encode(new_heartbeat), below=folder.path)
