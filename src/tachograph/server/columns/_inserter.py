"""Follow the journals of log folders and insert their records.

Each journal has a *cursor*: the offset up to which its rows are inserted, with the `JournalState` there. Cursors are in
ClickHouse too, and are inserted last, so whatever dies in between, the rows after the cursor are inserted again, which
has no effect. The inserter keeps nothing else: after any error it discards all rows in memory, waits, asks for the
cursors and continues there. If the tables were dropped there are no cursors, and it starts from the beginning.

The cursor has a hash of the bytes before its offset. If the journal has others there, it was replaced: its rows are
deleted and inserted again.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from tachograph._base.typed import decode_msgpack
from tachograph.exceptions import ColumnStoreError, ConfigError
from tachograph.journal import FoundRun, JournalFollower, LogFolders, RunFolder, RunScan, journal_size, open_journal
from tachograph.records import decode
from tachograph.server.columns._client import quote
from tachograph.server.columns._rows import JournalRows, JournalState, TableRows
from tachograph.server.columns._schema import StoreSchema

__all__ = ["Inserter", "InserterLag", "rank_journals", "run_key"]

_MAX_ROWS = 200_000
_MAX_WAIT_S = 2.0
_POLL_S = 0.2
_FIRST_PAUSE_S, _MAX_PAUSE_S = 0.5, 30.0
_BEFORE_BYTES = 4_096
_MAX_FIRST_LINE_BYTES = 4 << 20
_INVALID = (msgspec.MsgspecError, ValueError, RecursionError)


class InserterLag(msgspec.Struct):
    """How far an inserter is behind the journals."""

    num_bytes: int = 0
    """Bytes of journals that were not inserted when they were looked at last."""
    behind_since: float | None = None
    """The unix time at which the inserter was last up to date, if it is not now."""
    error: str | None = None
    """Why ClickHouse does not accept rows now."""
    num_rows: int = 0
    """Rows inserted since the start."""
    skipped: dict[str, str] = {}
    """Runs that are not inserted, and why."""

    @property
    def lag_s(self) -> float:
        """Seconds since everything was inserted."""
        return 0.0 if self.behind_since is None else max(0.0, time.time() - self.behind_since)


class _InsertCursor(msgspec.Struct):
    offset: int
    before: str


class _Journal:
    """One journal that is being read."""

    def __init__(self, rows: JournalRows, path: Path) -> None:
        self.rows = rows
        self.follower = JournalFollower(path, rows.state.offset)
        self.is_changed = False


class Inserter:
    """Inserts the records of all runs in log folders. One per server; a second one only repeats its work."""

    def __init__(
        self,
        schema: StoreSchema,
        *log_dirs: str,
        runs: list[str] | None = None,
        max_rows: int = _MAX_ROWS,
    ) -> None:
        """Create an inserter; it connects when it is used.

        Args:
            schema: the tables.
            log_dirs: the log folders.
            runs: the ids of the runs to insert; all by default.
            max_rows: how many rows to insert at once.
        """
        self._schema, self._runs = schema, runs
        self._scan = RunScan(LogFolders(*log_dirs), min_runs=0)
        self._run_keys: dict[str, tuple[tuple[str, int, int, int], str]] = {}
        """By path: id, inode, size and time of the journal of a run, and the key that it states."""
        self._max_rows = max_rows
        self.lag = InserterLag()
        self._unreadable_journals: dict[Path, str] = {}
        self._last_success_at = time.time()
        self._discard_progress()

    def _discard_progress(self) -> None:
        self._cursors: dict[tuple[str, int], _InsertCursor] | None = None
        self._journals: dict[Path, _Journal] = {}
        self._idle_runs: dict[str, FoundRun] = {}
        """By path: runs of which everything was read when they were looked at last."""
        self._batch = TableRows()

    def run(self, stop: threading.Event) -> None:
        """Insert new records until stopped. While ClickHouse is down, waits; see `lag`."""
        pause_s = _FIRST_PAUSE_S
        while not stop.is_set():
            try:
                if self._cursors is None:
                    self._schema.migrate()
                self.insert_all(_MAX_WAIT_S)
            except (ColumnStoreError, ConfigError, OSError) as error:
                self._discard_progress()
                self.lag.error = str(error)
                self.lag.behind_since = self.lag.behind_since or self._last_success_at
                stop.wait(pause_s)
                pause_s = min(2 * pause_s, _MAX_PAUSE_S)
                continue
            self.lag.error, pause_s = None, _FIRST_PAUSE_S
            self._last_success_at = time.time()
            stop.wait(_POLL_S)

    def insert_all(self, wait_s: float = 0.0) -> int:
        """Insert all new records of the journals; return the number of rows.

        Args:
            wait_s: how long to collect rows before they are inserted, unless there are many.

        Raises:
            ColumnStoreError: if ClickHouse fails. Call it again to continue.
        """
        num_before = self.lag.num_rows
        deadline_s = time.monotonic() + wait_s
        try:
            while True:
                is_behind = self._read_journals()
                if self._batch.num_rows and (not is_behind) and time.monotonic() < deadline_s:
                    time.sleep(_POLL_S)
                    continue
                self.flush()
                if not is_behind:
                    self.lag.behind_since = None
                    return self.lag.num_rows - num_before
        except BaseException:
            # The journals were read further than rows were inserted.
            self._discard_progress()
            raise

    def _read_journals(self) -> bool:
        """Read each journal up to its end, or until the batch is full; return whether some have more."""
        if self._cursors is None:
            self._cursors = self._load_cursors()
        num_behind = 0
        idle_runs: dict[str, FoundRun] = {}
        for run, run_id in self._find_runs():
            if self._idle_runs.get(run.path) is not run:  # else it rests
                num_of_run = self._read_run(run, run_id)
                num_behind += num_of_run
                if num_of_run or run.id in self.lag.skipped:
                    continue
            idle_runs[run.path] = run
        self._idle_runs = idle_runs
        self.lag.num_bytes = num_behind
        if num_behind and self.lag.behind_since is None:
            self.lag.behind_since = time.time()
        return num_behind > 0

    def _find_runs(self) -> list[tuple[FoundRun, str]]:
        """Return all runs with their keys, and state which ones are skipped."""
        names_by_run_id: dict[str, str] = {}
        skip_reasons: dict[str, str] = {}
        runs: list[tuple[FoundRun, str]] = []
        for run in sorted(self._scan.find(), key=lambda run: run.id):
            if self._runs is not None and run.id not in self._runs:
                continue
            run_id = self._run_id(run)
            if run_id in names_by_run_id:
                skip_reasons[run.id] = f"it has the same run_id as {names_by_run_id[run_id]!r}"
                continue
            names_by_run_id[run_id] = run.id
            runs.append((run, run_id))
        self.lag.skipped = skip_reasons
        return runs

    def _read_run(self, run: FoundRun, run_id: str) -> int:
        """Read the journals of a run until the batch is full; return the number of bytes that are left."""
        num_behind = 0
        for rank, path in rank_journals(RunFolder(run.path)):
            if path in self._unreadable_journals:
                self.lag.skipped[run.id] = self._unreadable_journals[path]
                continue
            num_bytes = self._num_new_bytes(run_id, rank, path)
            if num_bytes:
                if self._batch.num_rows < self._max_rows:
                    num_bytes = self._read_journal(run_id, run.id, rank, path)
                num_behind += num_bytes
        return num_behind

    def _run_id(self, run: FoundRun) -> str:
        journal = run.journal
        identity = run.id, journal.st_ino, journal.st_size, journal.st_mtime_ns
        known_identity, run_id = self._run_keys.get(run.path, (None, ""))
        if identity != known_identity:
            followed = self._journals.get(RunFolder(run.path).journal)
            run_id = run_key(run.path, run.id) if followed is None else followed.rows.run_id
            self._run_keys[run.path] = identity, run_id
        return run_id

    def _num_new_bytes(self, run_id: str, rank: int, path: Path) -> int:
        """Return how many bytes of a journal are not read yet; also if it is another one now, and not longer."""
        assert self._cursors is not None  # noqa: S101 - set by the caller
        try:
            size = journal_size(path)
        except OSError:
            return 0
        journal, cursor = self._journals.get(path), self._cursors.get((run_id, rank))
        offset = journal.rows.state.offset if journal else cursor.offset if cursor else 0
        return size - offset if size > offset else int(size < offset)

    def _read_journal(self, run_id: str, name: str, rank: int, path: Path) -> int:
        """Read one journal; return the number of bytes that are left."""
        journal = self._journals.get(path) or self._open_journal(run_id, name, rank, path)
        while self._batch.num_rows < self._max_rows:
            lines = journal.follower.poll_lines()
            if journal.follower.num_restarts:
                self._schema.delete_run(run_id, rank)
                del self._journals[path]
                assert self._cursors is not None  # noqa: S101 - the caller needs them
                self._cursors.pop((run_id, rank), None)
                journal = self._open_journal(run_id, name, rank, path)
                continue
            if not lines:
                # Bytes after the last newline are a record that is being written.
                return 0
            try:
                journal.rows.add(lines)
            except (*_INVALID, ArithmeticError, LookupError, TypeError) as error:
                # Others write the journals: one that cannot be converted must not stop the rest.
                self._unreadable_journals[path] = f"its records cannot be converted: {type(error).__name__}: {error}"
                del self._journals[path]
                return 0
            journal.is_changed = True
        return 1  # perhaps more; the next pass knows

    def _open_journal(self, run_id: str, name: str, rank: int, path: Path) -> _Journal:
        """Continue a journal after its cursor, or from the beginning if it has none or is another journal now."""
        assert self._cursors is not None  # noqa: S101 - set by the caller
        cursor = self._cursors.get((run_id, rank))
        state = None
        if cursor is not None:
            if _hash_before(path, cursor.offset) == cursor.before:
                state = self._load_state(run_id, rank, cursor)
            else:
                self._schema.delete_run(run_id, rank)
        journal = _Journal(JournalRows(run_id, rank, name, path, state, self._batch), path)
        self._journals[path] = journal
        return journal

    def flush(self) -> None:
        """Insert the rows that were read, then the cursors."""
        changed_journals = {path: journal for path, journal in self._journals.items() if journal.is_changed}
        version = time.time_ns()
        cursors: dict[tuple[str, int], _InsertCursor] = {}
        for path, journal in changed_journals.items():
            rows = journal.rows
            rows.finish()
            cursor = _InsertCursor(rows.state.offset, _hash_before(path, rows.state.offset))
            cursors[rows.run_id, rows.rank] = cursor
            self._batch.add(
                "cursors",
                1,
                run_id=rows.run_id,
                rank=rows.rank,
                offset=cursor.offset,
                before=cursor.before,
                state=msgspec.msgpack.encode(rows.state),
                version=version,
            )
        for table, data in self._batch.tables():
            self._schema.client.insert(self._schema.table(table), data)
        self.lag.num_rows += self._batch.num_rows
        assert self._cursors is not None or not cursors  # noqa: S101 - journals are read after cursors
        if self._cursors is not None:
            self._cursors |= cursors
        self._batch = TableRows()
        for path, journal in list(self._journals.items()):
            journal.rows.batch, journal.is_changed = self._batch, False
            if path not in changed_journals:  # idle: its state can be loaded again
                del self._journals[path]

    def _load_cursors(self) -> dict[tuple[str, int], _InsertCursor]:
        table = self._schema.table("cursors")
        kinds = {"run_id": "String", "rank": "UInt32", "last_offset": "UInt64", "last_before": "String"}
        rows = self._schema.client.columns(
            "SELECT run_id, rank, argMax(offset, version) AS last_offset, argMax(before, version) AS last_before"
            f" FROM {table} GROUP BY run_id, rank",
            kinds,
        )
        columns = (rows["run_id"], rows["rank"].tolist(), rows["last_offset"].tolist(), rows["last_before"])
        return {
            (run_id, rank): _InsertCursor(offset, text) for run_id, rank, offset, text in zip(*columns, strict=True)
        }

    def _load_state(self, run_id: str, rank: int, cursor: _InsertCursor) -> JournalState | None:
        states = self._schema.client.columns(
            f"SELECT state FROM {self._schema.table('cursors')} WHERE run_id = {quote(run_id)} AND rank = {rank}"
            f" AND offset = {cursor.offset} ORDER BY version DESC LIMIT 1",
            {"state": "Bytes"},
        )["state"]
        try:
            state = decode_msgpack(states[0], JournalState) if states else None
        except msgspec.MsgspecError:  # of another version of Tachograph: insert the run again
            return None
        return state if state is not None and state.offset == cursor.offset else None


def run_key(path: str | os.PathLike[str], name: str) -> str:
    """Return the key of a run in the column store: its recorded `run_id`, or its name if it has none.

    Args:
        path: its folder.
        name: its id among the runs of the log folders.
    """
    try:
        with open_journal(RunFolder(path).journal) as file:
            record = decode(file.readline(_MAX_FIRST_LINE_BYTES))
    except (OSError, *_INVALID):
        return f"name:{name}"
    run_id = record.get("run_id")
    return run_id if isinstance(run_id, str) and run_id else f"name:{name}"


def rank_journals(folder: RunFolder) -> Iterator[tuple[int, Path]]:
    """Yield the ranks of a run and their journals, rank 0 first."""
    yield 0, folder.journal
    for rank in folder.other_ranks():
        if rank:
            yield rank, folder.rank_journal(rank)


def _hash_before(path: Path, offset: int) -> str:
    """Return a hash of the bytes before an offset; empty if the file ends earlier."""
    try:
        with open_journal(path) as file:
            begin = max(0, offset - _BEFORE_BYTES)
            file.seek(begin)
            data = file.read(offset - begin)
    except OSError:
        return ""
    return hashlib.blake2b(data, digest_size=16).hexdigest() if len(data) == offset - begin else ""
