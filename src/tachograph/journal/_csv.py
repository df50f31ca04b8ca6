"""The CSV mirror: `metrics.csv`, one row per record of the journal, with columns added as new fields appear.

The mirror is a journal reader with a cursor: how many bytes of the journal are mirrored, and how long the CSV was then.
Everything after the cursor is truncated and rewritten from the journal, so the file is correct after a crash, a full
disk or a resume. In normal operation the writer passes each batch it has appended, and nothing is read back.

A new column goes to the end and requires rewriting the whole file, which is replaced atomically. To keep the total cost
from growing quadratically, rewriting may use at most a tenth of the time; meanwhile the mirror falls behind and later
catches up from the journal. Every row is one line: a line break inside a string is written as the two characters
``\\n``. The rows of a `completions` record are not mirrored, nor are the items of media and the bins of histograms.

A run that ends while its mirror is behind does not wait: a background process (`_csv_main`) rebuilds the file. It needs
the lock of the run only to put the finished file in its place, so it never keeps the run from being resumed. If the run
is resumed first, the new file is discarded, because the mirror of the new writer catches up by itself.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from tachograph._base.files import (
    make_folder,
    move_file,
    open_to_read,
    open_to_update,
    read_small,
    replace_file,
    replacing,
    temporary_path,
    write_all,
)
from tachograph._base.guard import faults, suppress
from tachograph._base.typed import decode_json
from tachograph.journal._claim import lock_run_folder
from tachograph.journal._files import open_journal, stat_journal
from tachograph.journal._folder import RunFolder
from tachograph.journal._follower import JournalFollower, count_records, read_records
from tachograph.records import Encodable, StepTable, to_json

__all__ = ["CsvMirror", "is_csv_current", "rebuild_csv"]

FIRST_COLUMNS = (
    "event",
    "time",
    "global_step",
    "epoch",
    "train_loss",
    "lr",
    "grad_norm",
    "samples_per_sec",
    "sec_per_step",
    "gpu_mem_allocated",
    "gpu_mem_reserved",
    "cpu_mem_rss_mb",
    "nan_inf_detected",
)
"""Always present, in this order, because existing scripts parse them."""

MAX_COLUMNS = 2_000
OVERFLOW_COLUMN = "more"
"""The column for fields beyond `MAX_COLUMNS`, as one JSON object."""

_MAX_REWRITE_SHARE = 0.1
_COPY_BYTES = 1 << 20
_SAVE_CURSOR_EVERY_S = 20.0
_LOCK_POLL_S = 0.1
_MAX_CURSOR_BYTES = 64 << 20

_encode = msgspec.json.Encoder().encode

_ESCAPES = {
    **{chr(code): f"\\x{code:02x}" for code in range(32)},
    **{chr(code): f"\\u{code:04x}" for code in (0x85, 0x2028, 0x2029)},
    "\n": "\\n",
    "\r": "\\r",
    "\t": "\t",
}


class _CsvCursor(msgspec.Struct):
    journal_bytes: int
    csv_bytes: int
    columns: list[str]
    journal_crc: int
    csv_crc: int


class CsvMirror:
    """Keeps `metrics.csv` in sync with the journal; used only by the writer of the run."""

    def __init__(
        self,
        folder: RunFolder,
        path: Path | None = None,
        first_columns: Iterable[str] = FIRST_COLUMNS,
        yield_to_writer: Callable[[], None] = lambda: None,
    ) -> None:
        # `yield_to_writer` is called between blocks of a long rewrite, so that the journal is written meanwhile.
        self._folder = folder
        self._path = path or folder.csv
        self._first_columns = tuple(first_columns)
        self._yield_to_writer = yield_to_writer
        self._fd = -1
        self._columns: dict[str, int] = {}
        self._csv_bytes = 0
        self._layouts: dict[tuple[str, ...], list[int | msgspec.Raw]] = {}
        self._rewrite_ended_at = float("-inf")
        self._rewrite_took_s = 0.0
        self._cursor_saved_at = time.monotonic()
        self._cursor_csv_bytes = -1  # the length of the file when the cursor was saved
        self.journal_bytes = 0
        """How many bytes of the journal are mirrored."""

    def load(self) -> None:
        """Continue where the last writer stopped, if both files still match its cursor."""
        try:
            cursor = _read_cursor(self._folder)
            header = _header(cursor.columns)
            journal_end = _tail_checksum(self._folder.journal, cursor.journal_bytes)
            csv_end = _tail_checksum(self._path, cursor.csv_bytes)
            with open_to_read(self._path) as file:
                is_ours = file.read(len(header)) == header
        except faults(OSError, ValueError, msgspec.MsgspecError):
            return
        if (
            is_ours
            and cursor.csv_bytes >= len(header)
            and (journal_end, csv_end) == (cursor.journal_crc, cursor.csv_crc)
        ):
            self._columns = {name: index for index, name in enumerate(cursor.columns)}
            self._csv_bytes, self.journal_bytes = cursor.csv_bytes, cursor.journal_bytes

    def add(self, records: Sequence[Encodable], start: int, end: int) -> None:
        """Mirror records just appended between two offsets of the journal; do nothing if earlier ones are missing."""
        if self.journal_bytes != start or not records:
            return
        self._ensure_open()
        if self.journal_bytes == start and self._ensure_columns(_names(records)):
            rows = b"".join(self._rows(record) for record in records)
            self._append(rows, end)

    def catch_up(self, journal_end: int, *, budget_s: float, force: bool = False) -> bool:
        """Mirror missing records from the journal within a time budget; return True when none is missing.

        With `force` the file is rewritten for new columns as often as the budget allows.
        """
        deadline_s = time.monotonic() + budget_s
        self._ensure_open()
        if self.journal_bytes < journal_end:
            follower = JournalFollower(self._folder.journal, self.journal_bytes, block_bytes=256 << 10)
            while self.journal_bytes < journal_end and time.monotonic() < deadline_s:
                records = StepTable.from_records(follower.poll_block())
                if follower.offset == self.journal_bytes:
                    break
                # The next rewrite takes about as long as the last one.
                has_time = time.monotonic() + self._rewrite_took_s < deadline_s
                if not self._ensure_columns(_names(records), force=force and has_time):
                    break
                rows = b"".join(self._rows(record) for record in records)
                self._append(rows, follower.offset)
                self._yield_to_writer()
        is_old = time.monotonic() - self._cursor_saved_at >= _SAVE_CURSOR_EVERY_S
        if is_old and self._csv_bytes != self._cursor_csv_bytes:
            self._save_cursor()
        return self.journal_bytes >= journal_end

    def close_after_error(self) -> None:
        """Close the file after an error; the next call reopens it and continues from the cursor."""
        if self._fd >= 0:
            with suppress(OSError):
                os.close(self._fd)
            self._fd = -1

    def start_over(self) -> None:
        """Rebuild the file from scratch, because the journal was replaced."""
        self.close_after_error()
        self._columns = {}
        self._cursor_csv_bytes = -1
        self._folder.csv_cursor.unlink(missing_ok=True)

    def publish(self) -> None:
        """Move a file built at a temporary path to its place, atomically."""
        move_file(self._path, self._folder.csv, below=self._folder.path)
        self._path = self._folder.csv

    def close(self) -> None:
        """Save the cursor and close the file."""
        if self._fd >= 0:
            with suppress(OSError):  # such as a full disk; the previous cursor is still valid
                self._save_cursor()
        self.close_after_error()

    def _ensure_open(self) -> None:
        if self._fd >= 0:
            return
        descriptor = open_to_update(self._path, below=self._folder.path)
        try:
            if self._columns and os.fstat(descriptor).st_size < self._csv_bytes:
                self._columns = {}  # the file was truncated or replaced
            os.ftruncate(descriptor, self._csv_bytes if self._columns else 0)
            os.lseek(descriptor, 0, os.SEEK_END)
        except BaseException:
            os.close(descriptor)
            raise
        self._fd = descriptor
        if not self._columns:
            self._layouts.clear()
            self._columns = {name: index for index, name in enumerate(self._first_columns)}
            self._csv_bytes = self.journal_bytes = 0
            self._append(_header(self._columns), 0)

    def _save_cursor(self) -> None:
        self._cursor_saved_at = time.monotonic()
        if self._path != self._folder.csv:  # a file that is not in its place yet
            return
        try:
            journal_crc = _tail_checksum(self._folder.journal, self.journal_bytes)
            csv_crc = _tail_checksum(self._path, self._csv_bytes)
        except ValueError:
            return  # the files were changed by others; loading the old cursor will detect it
        cursor = _CsvCursor(self.journal_bytes, self._csv_bytes, list(self._columns), journal_crc, csv_crc)
        replace_file(self._folder.csv_cursor, _encode(cursor), below=self._folder.path)
        self._cursor_csv_bytes = self._csv_bytes

    def _append(self, rows: bytes, journal_bytes: int) -> None:
        self._csv_bytes += write_all(self._fd, rows)
        self.journal_bytes = journal_bytes

    def _ensure_columns(self, names: Iterable[str], *, force: bool = False) -> bool:
        new = _new_columns(names, self._columns)
        if not new:
            return True
        now_s = time.monotonic()
        # Rewriting a small file is cheap, so early columns appear at once.
        is_small = self._csv_bytes <= _COPY_BYTES
        if not (force or is_small) and now_s - self._rewrite_ended_at < self._rewrite_took_s / _MAX_REWRITE_SHARE:
            return False
        self._widen(new)
        self._rewrite_ended_at = time.monotonic()
        self._rewrite_took_s = self._rewrite_ended_at - now_s
        return True

    def _widen(self, new: list[str]) -> None:
        """Rewrite the file with more columns. Readers see the old file until the new one is complete."""
        columns = {**self._columns, **{name: len(self._columns) + index for index, name in enumerate(new)}}
        with replacing(self._path, below=self._folder.path) as descriptor:
            size = write_all(descriptor, _header(columns))
            # A row never contains a newline, so adding empty cells before each newline widens every row.
            row_end = b"," * len(new) + b"\n"
            offset = len(_header(self._columns))
            while offset < self._csv_bytes:
                block = os.pread(self._fd, min(_COPY_BYTES, self._csv_bytes - offset), offset)
                if not block:
                    raise OSError(f"{self._path} was truncated while it was read")
                offset += len(block)
                size += write_all(descriptor, block.replace(b"\n", row_end))
                self._yield_to_writer()
        os.close(self._fd)
        self._fd, self._csv_bytes, self._columns = descriptor, size, columns
        self._layouts.clear()
        # The saved cursor describes the old file: after a crash it would make a resume corrupt the new one.
        self._save_cursor()

    def _rows(self, record: Encodable) -> bytes:
        if not isinstance(record, StepTable):
            return self._row(record)
        if OVERFLOW_COLUMN in self._columns and not self._columns.keys() >= set(record.names):
            return b"".join(map(self._row, record.records()))
        return self._table_rows(record)

    def _row(self, record: dict[str, Any]) -> bytes:
        cells = [b""] * len(self._columns)
        overflow: dict[str, Any] = {}
        for name, value in _mirrored_fields(record).items():
            if value is None:
                continue
            column = self._columns.get(name)
            if column is None:
                overflow[name] = value
            else:
                cells[column] = _cell(value)
        if overflow:
            cells[self._columns[OVERFLOW_COLUMN]] = _cell(overflow)
        return b",".join(cells) + b"\n"

    def _table_rows(self, table: StepTable) -> bytes:
        layout = self._layouts.get(table.names)
        if layout is None:
            if len(self._layouts) >= 256:
                self._layouts.clear()
            layout = self._layouts[table.names] = self._layout(table.names)
        return table.csv_rows(layout)

    def _layout(self, names: tuple[str, ...]) -> list[int | msgspec.Raw]:
        """Return the cells of a row of a table, for `StepTable.csv_rows`: neighbours that are constant are joined."""
        constants = dict(StepTable.CONSTANTS)
        indices = {name: index for index, name in enumerate(names)}
        layout: list[int | msgspec.Raw] = []
        for is_constant, group in itertools.groupby(self._columns, key=lambda name: name not in indices):
            if is_constant:
                layout.append(msgspec.Raw(b",".join(constants.get(name, b"") for name in group)))
            else:
                layout += [indices[name] for name in group]
        return layout


def rebuild_csv(folder: RunFolder, *, wait_s: float = 0.0) -> int | None:
    """Rebuild `metrics.csv` from the journal and return the number of rows.

    Args:
        folder: the run.
        wait_s: how long to wait for a process that records the run.

    Returns:
        The number of rows, or None if a process records the run: its writer maintains the file.
    """
    with _lock_within(folder, wait_s) as is_ours:
        if not is_ours:
            return None
    identity = _identity(folder.journal)
    # First pass: collect the columns, so that the second pass never has to rewrite.
    columns = {name: index for index, name in enumerate(FIRST_COLUMNS)}
    for record in read_records(folder.journal):
        for name in _new_columns(_names([record]), columns):
            columns[name] = len(columns)
    make_folder(folder.private, below=folder.path)
    temporary = temporary_path(folder.csv)
    mirror = CsvMirror(folder, temporary, columns)
    try:
        mirror.catch_up(JournalFollower.complete_bytes(folder.journal), budget_s=math.inf, force=True)
        # A writer appends rows by offset: replacing the file underneath it would corrupt it.
        with _lock_within(folder, wait_s) as is_ours:
            if not is_ours or _identity(folder.journal) != identity:
                return None
            mirror.catch_up(JournalFollower.complete_bytes(folder.journal), budget_s=math.inf, force=True)
            mirror.publish()
            mirror.close()
        return count_records(folder.csv) - 1
    finally:
        mirror.close_after_error()
        temporary.unlink(missing_ok=True)  # if it was not published


@contextlib.contextmanager
def _lock_within(folder: RunFolder, wait_s: float) -> Iterator[bool]:
    """Lock a run folder; yield False if another process has the lock for longer than `wait_s`."""
    deadline_s = time.monotonic() + wait_s
    while True:
        with lock_run_folder(folder) as is_ours:
            if is_ours or time.monotonic() >= deadline_s:
                yield is_ours
                return
        time.sleep(_LOCK_POLL_S)


def _identity(path: Path) -> tuple[int, int]:
    status = stat_journal(path)
    return status.st_dev, status.st_ino


def is_csv_current(folder: RunFolder) -> bool:
    """Return whether the CSV of a run that is not being recorded mirrors the whole journal."""
    try:
        cursor = _read_cursor(folder)
        return (
            folder.csv.stat().st_size == cursor.csv_bytes
            and JournalFollower.complete_bytes(folder.journal) == cursor.journal_bytes
        )
    except faults(OSError, msgspec.MsgspecError):
        return False


def _read_cursor(folder: RunFolder) -> _CsvCursor:
    return decode_json(read_small(folder.csv_cursor, _MAX_CURSOR_BYTES, below=folder.path), _CsvCursor)


def _tail_checksum(path: Path, size: int) -> int:
    """Return a checksum of the last bytes before an offset, to detect a replaced file.

    Raises:
        ValueError: if the offset is not the end of a line.
    """
    try:
        file = open_to_read(path)
    except faults(FileNotFoundError):
        file = open_journal(path)  # compressed
    with file:
        start = max(0, size - 4096)
        file.seek(start)
        block = file.read(size - start)
    if len(block) != size - start or (size and not block.endswith(b"\n")):
        raise ValueError(f"{path} does not end a line at {size}")
    return zlib.crc32(block)


def _new_columns(names: Iterable[str], columns: Mapping[str, int]) -> list[str]:
    """Return the columns to add for some names: up to `MAX_COLUMNS` in total, then the overflow column."""
    new = list(dict.fromkeys(name for name in names if name not in columns))
    if not new or OVERFLOW_COLUMN in columns:
        return [] if OVERFLOW_COLUMN in columns else new
    room = max(0, MAX_COLUMNS - len(columns))
    return new if len(new) <= room else [*new[:room], OVERFLOW_COLUMN]


def _names(records: Iterable[Encodable]) -> Iterable[str]:
    for record in records:
        yield from record.names if isinstance(record, StepTable) else _mirrored_fields(record)


def _mirrored_fields(record: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a record to mirror; tables, items of media and bins are too long for a cell."""
    long_fields = _LONG_FIELDS.get(record["event"])
    if long_fields is None:
        return record
    return {name: value for name, value in record.items() if name not in long_fields}


_LONG_FIELDS = {"completions": {"columns", "rows"}, "media": {"items"}, "histograms": {"values"}}


def _header(columns: Iterable[str]) -> bytes:
    return b",".join(_text_cell(name) for name in columns) + b"\n"


def _cell(value: Any) -> bytes:
    if isinstance(value, str):
        return _text_cell(value)
    if isinstance(value, (dict, list)):
        return _text_cell(to_json(value))
    text = _encode(value)  # the same digits as in the journal
    return text if text != b"null" else to_json(value).strip('"').encode()


def _text_cell(text: str) -> bytes:
    if not text.isprintable():  # keep a row on one line for every definition of a line break
        text = "".join(_ESCAPES.get(character, character) for character in text.replace("\\", "\\\\"))
    if "," in text or '"' in text or text != text.strip():
        return b'"' + text.replace('"', '""').encode() + b'"'
    return text.encode()
