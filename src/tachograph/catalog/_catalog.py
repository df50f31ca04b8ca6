"""The runs below one or more log folders as rows, without reading what did not change.

For each run two files are looked at each time, unless the run rests (see `RunScan`): the journal, whose size and time
identify a summary, and the folder with annotations, whose time changes with them. Only if one of these changed is
anything read: the summary that an earlier reader stored, or else the ends of the journal. Full summaries, which need
the whole journal once, are computed only when a field needs them, and stored for ended runs.

A new process starts from the *index* (see `_index`), one file for all runs of a log folder. It is a cache: it is
rewritten when it lacks more than a few runs, and may be deleted at any time.

The state of a run without an end can change although no file does. It is inferred again each time, as in `Store`.

The rows that were found last are a *listing*. A new one is made only if some row changed, and it caches
results computed from its rows: the rows that match an expression, their order, and the known fields. So a dashboard
that scrolls, or polls a folder in which nothing happens, costs little more than looking at the files, and in a large
folder not even that: see `max_age_s` of `rows`.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from tachograph.catalog._annotations import Annotations, read_annotations
from tachograph.catalog._columns import ColumnFactsCache
from tachograph.catalog._fields import FieldDescription, describe_fields
from tachograph.catalog._index import IndexEntry, index_path, keys_of, load_index, save_index
from tachograph.catalog._lineage import children_of
from tachograph.catalog._query import Query, parse_query
from tachograph.catalog._row import AGGREGATES, FACTS, RunRow, StepValue, needs_full, step_value_of
from tachograph.catalog._summary import (
    CatalogSummary,
    JournalKey,
    brief_summary,
    full_summary,
    journal_key,
    load_summary,
    save_summary,
)
from tachograph.catalog._syntax import QueryError, print_field
from tachograph.exceptions import RunNotFoundError, did_you_mean
from tachograph.journal import (
    FoundRun,
    LogFolders,
    RunFolder,
    RunScan,
    RunState,
    infer_writer_state,
    is_linked_out,
    read_heartbeat,
    stat_journal,
    this_process,
)
from tachograph.reader import RunOverview
from tachograph.store import SegmentError, StoredRun

__all__ = ["OWN_FOLDER", "Catalog", "known_fields", "pinned_first", "sort_rows"]

OWN_FOLDER = ".tachograph"
"""The folder inside a log folder for what belongs to all runs: index, trash and views."""
_MAX_ANSWERS = 32
"""The number of answers that a listing keeps; each is at most a list of all rows."""
_MANY_RUNS = 1_000
"""Looking at fewer runs than this costs so little that it is done each time."""
_MAX_RUNNING = 16
_MAX_STEP_VALUES = 1_000
"""The number of values at steps that are kept of a run, those asked for last."""
_REFRESH_SHARE = 0.1
"""The share of time that a running run may be summarised."""

T = TypeVar("T")


class _FollowedRun(msgspec.Struct):
    """A running run that is followed, and when its summary may be computed again."""

    run: StoredRun
    next_s: float = 0.0


class _CacheEntry(msgspec.Struct):
    row: RunRow
    annotated_ns: int
    is_saved: bool
    """Whether the index on disk has it."""
    last_look: FoundRun | None = None
    """The run as it was when it was looked at last, if its state can change only with its files; else None."""

    @property
    def is_final(self) -> bool:
        """Whether the state of the run can change only with its files."""
        return self.row.summary.has_end or self.row.summary.overview.state is RunState.CRASHED


class _Listing:
    """The rows of all runs, newest first, and results computed from them. Thread-safe, as far as dicts are."""

    def __init__(self, rows: list[RunRow]) -> None:
        self.unsorted_rows = rows
        """In the order in which they were found."""
        self.rows = sorted(rows, key=lambda row: (-(row.summary.overview.started or 0.0), row.id))
        self._answers: OrderedDict[Hashable, Any] = OrderedDict()
        self._lock = threading.Lock()

    def answer(self, key: Hashable, compute: Callable[[], T]) -> T:
        """Return the cached result of a function for a key, or call it. Results must not be changed."""
        with self._lock:
            if key in self._answers:
                self._answers.move_to_end(key)
                result: T = self._answers[key]
                return result
        result = compute()
        with self._lock:
            self._answers[key] = result
            while len(self._answers) > _MAX_ANSWERS:
                self._answers.popitem(last=False)
        return result

    def forget(self) -> None:
        """Compute everything again."""
        with self._lock:
            self._answers.clear()


class Catalog:
    """The runs below some log folders. Thread-safe."""

    def __init__(
        self,
        *log_dirs: str | os.PathLike[str],
        uses_index: bool = True,
        open_run: Callable[[RunFolder], StoredRun] = StoredRun,
        scan: RunScan | None = None,
    ) -> None:
        """Open log folders.

        Args:
            log_dirs: the folders.
            uses_index: whether to load and store the index.
            open_run: returns a run to summarise; by default one that nothing else uses.
            scan: finds the runs of these folders; by default one that nothing else uses.
        """
        self._open_run = open_run
        self.folders = LogFolders(*log_dirs)
        self._scan = RunScan(self.folders) if scan is None else scan
        self.log_dirs = self.folders.log_dirs
        self._uses_index = uses_index
        self._lock = threading.RLock()
        self._row_cache: dict[str, dict[str, _CacheEntry]] = {log_dir: {} for log_dir in self.log_dirs}
        self._running: OrderedDict[str, _FollowedRun] = OrderedDict()
        self._unreadable: dict[tuple[str, str], JournalKey] = {}
        self._here = this_process()
        self._is_loaded = False
        self._listing = _Listing([])
        self._looked_s = -math.inf
        self._is_outdated = True
        self.column_facts = ColumnFactsCache()

    # Rows

    def rows(
        self,
        *,
        is_full: bool = False,
        step_values: Iterable[StepValue] = (),
        max_s: float | None = None,
        max_age_s: float = 0.0,
    ) -> list[RunRow]:
        """Return the rows of all runs, newest first.

        Args:
            is_full: compute full summaries that are missing.
            step_values: also compute these values at steps.
            max_s: after this time, leave the remaining summaries brief; the next call continues.
            max_age_s: with many runs, return rows up to this old without scanning the folders again.
        """
        return list(self._list(is_full=is_full, step_values=step_values, max_s=max_s, max_age_s=max_age_s).rows)

    def _list(
        self,
        *,
        is_full: bool = False,
        step_values: Iterable[StepValue] = (),
        max_s: float | None = None,
        max_age_s: float = 0.0,
    ) -> _Listing:
        with self._lock:
            deadline_s = None if max_s is None else time.monotonic() + max_s
            self._load()
            is_new = time.monotonic() < self._looked_s + max_age_s and self.num_runs >= _MANY_RUNS
            if not is_new or self._is_outdated:
                self._look()
            if is_full:
                self._complete(list(step_values), deadline_s)
            if self._found_rows() != self._listing.unsorted_rows:  # compares identities
                if self._uses_index:
                    for log_dir in self.log_dirs:
                        self._save_index(log_dir)
                self._link_children()
                self._listing = _Listing(self._found_rows())
            return self._listing

    def _found_rows(self) -> list[RunRow]:
        return [entry.row for runs in self._row_cache.values() for entry in runs.values()]

    def _load(self) -> None:
        if not self._is_loaded and self._uses_index:
            for log_dir in self.log_dirs:
                self._load_index(log_dir)
        self._is_loaded = True

    def _look(self) -> None:
        """Look at all runs."""
        self._looked_s, self._is_outdated = time.monotonic(), False
        current: dict[str, dict[str, _CacheEntry]] = {log_dir: {} for log_dir in self.log_dirs}
        for run in self._scan.find():
            entry = self._row_cache[run.log_dir].get(run.name)
            if entry is None or entry.last_look is not run:
                entry = self._look_at(run.log_dir, run.name, run.path, run.journal)
                if entry is None:
                    continue
                self._set_id(entry, run.id)
                entry.last_look = run if entry.is_final else None  # it may rest
            current[run.log_dir][run.name] = entry
        self._row_cache = current

    def _set_id(self, entry: _CacheEntry, run_id: str) -> None:
        if entry.row.id != run_id:
            entry.row = entry.row.with_summary(entry.row.summary)
            entry.row.id = run_id

    def outdate(self) -> None:
        """Look at the runs the next time, however old the rows may be, because some changed."""
        self._is_outdated = True

    def outdate_row(self, row: RunRow) -> None:
        """Look at a run the next time, because this process changed it, even if nothing was recorded for long."""
        self._scan.wake(row.log_dir, row.name)
        self.outdate()

    def known_overview(self, run: FoundRun) -> RunOverview | None:
        """Return the overview of an ended run whose journal has not changed since it was read; else None."""
        if not self._is_loaded:
            with self._lock:
                self._load()
        entry = self._row_cache[run.log_dir].get(run.name)
        if entry is None or not entry.row.summary.has_end or entry.row.summary.journal != journal_key(run.journal):
            return None
        return entry.row.summary.overview

    @property
    def num_runs(self) -> int:
        """The number of runs found by the last call of `rows`."""
        return sum(len(runs) for runs in self._row_cache.values())

    @property
    def indexed_share(self) -> float:
        """The share of runs with a full summary; running and unreadable runs count as known."""
        return self.indexed_share_for(())

    def indexed_share_for(self, fields: Iterable[str], rows: Sequence[RunRow] | None = None) -> float:
        """Return the share of all or some runs with a full summary, and with the values at steps among some fields."""
        with self._lock:
            listing = self._listing
        steps = tuple(dict.fromkeys(step_value for step_value in map(step_value_of, fields) if step_value is not None))
        if rows is not None:
            return self._indexed_share_for(rows, steps)
        return listing.answer(("indexed_share", steps), lambda: self._indexed_share_for(listing.rows, steps))

    def _indexed_share_for(self, rows: Sequence[RunRow], steps: Iterable[StepValue]) -> float:
        step_values = _without_names(list(steps), rows)
        row_is_complete = (
            (row.summary.is_full and not (step_values and row.missing_values(step_values)))
            or row.summary.overview.state is RunState.RUNNING
            or self._unreadable.get((row.log_dir, row.name)) == row.summary.journal
            for row in rows
        )
        return sum(row_is_complete) / len(rows) if rows else 1.0

    def select(
        self,
        query: Query | str = "",
        *,
        columns: Iterable[str] = (),
        archived: bool | None = False,
        now: float | None = None,
        max_s: float | None = None,
        max_age_s: float = 0.0,
    ) -> list[RunRow]:
        """Return the rows that match an expression, newest first. The list may be returned again: do not change it.

        Args:
            query: the expression.
            columns: fields that will be read from the rows.
            archived: False leaves archived runs out, True leaves the others out, None returns both.
            now: the time that relative times refer to.
            max_s: see `rows`.
            max_age_s: see `rows`.

        Raises:
            QueryError: if the expression is invalid.
        """
        query = parse_query(query) if isinstance(query, str) else query
        if "archived" in query.fields:
            archived = None
        fields = {*query.fields, *columns, *query.tested}
        step_values = [step_value for step_value in map(step_value_of, fields) if step_value is not None]
        listing = self._list(
            is_full=any(map(needs_full, fields)), step_values=step_values, max_s=max_s, max_age_s=max_age_s
        )

        def compute() -> list[RunRow]:
            matches = query.matcher(now)
            return [
                row for row in listing.rows if (archived is None or row.get("archived") is archived) and matches(row)
            ]

        return compute() if query.is_relative else listing.answer(("match", query.text, archived), compute)

    def in_order(self, rows: Sequence[RunRow], sort: str = "", pinned: Sequence[str] | None = None) -> list[RunRow]:
        """Return rows that `select` returned in another order.

        Args:
            rows: the rows.
            sort: a field; with a minus in front, highest first. Empty keeps their order.
            pinned: rows to put first, besides the pinned ones; None keeps pinned rows in order, too.
        """
        field = sort.removeprefix("-")

        def compute() -> tuple[Sequence[RunRow], list[RunRow]]:
            sorted_rows = sort_rows(rows, field, is_descending=sort.startswith("-")) if field else list(rows)
            return rows, sorted_rows if pinned is None else pinned_first(sorted_rows, pinned)

        # The rows are part of the answer, so their id cannot be used again while it is kept.
        key = ("order", id(rows), sort, None if pinned is None else tuple(pinned))
        return self._listing.answer(key, compute)[1]

    def places(self) -> dict[str, int]:
        """Return by id how many runs were started before each one. The dict may be returned again: do not change it."""
        listing = self._listing

        def compute() -> dict[str, int]:
            started = [(row.summary.overview.started, row.id) for row in listing.rows]
            in_order = sorted((math.inf if time is None else time, run_id) for time, run_id in started)
            return {run_id: place for place, (_, run_id) in enumerate(in_order)}

        return listing.answer("places", compute)

    def fields(self, query: str = "", *, max_s: float | None = None, max_age_s: float = 0.0) -> list[FieldDescription]:
        """Return all fields that some of the runs that match have, with their values, archived runs included.

        Raises:
            QueryError: if the expression is invalid.
        """
        listing = self._list(is_full=True, max_s=max_s, max_age_s=max_age_s)
        if not query.strip():
            return listing.answer("fields", lambda: describe_fields(listing.rows))
        rows = self.select(query, columns=["loss"], archived=None, max_s=max_s, max_age_s=max_age_s)
        # The rows are part of the answer, so their id cannot be used again while it is kept.
        return listing.answer(("fields", id(rows)), lambda: (rows, describe_fields(rows)))[1]

    def unknown_fields(self, query: Query, columns: Iterable[str] = ()) -> list[QueryError]:
        """Return an error for each field of an expression, or column, that no run has; it names similar ones."""
        columns = [column for column in columns if column not in FACTS]
        if not columns and all(field in FACTS for field in query.fields):
            return []
        with self._lock:
            listing = self._listing
        if not listing.rows or not listing.answer("full", lambda: all(row.summary.is_full for row in listing.rows)):
            listing = self._list(is_full=True)
        used_fields = dict.fromkeys([*query.fields, *columns])
        existing_fields = listing.answer(
            ("found", *used_fields),
            lambda: {field for field in used_fields if any(row.has(field) for row in listing.rows)},
        )
        if not listing.rows or len(existing_fields) == len(used_fields):
            return []
        names = listing.answer(
            "names", lambda: {*known_fields(listing.rows), *keys_of(row.summary.metrics for row in listing.rows)}
        )
        column_query = parse_query(" ".join(f"{print_field(column)}=0" for column in columns))
        return [*query.unknown_fields(names | existing_fields), *column_query.unknown_fields(names | existing_fields)]

    def row(self, run_id: str) -> RunRow:
        """Return the row of a run by its id, looking at this run only.

        Raises:
            RunNotFoundError: if there is no such run, or several log folders have one of this name.
        """
        with self._lock:
            location = self.folders.resolve(run_id)
            if location is not None:
                log_dir, name, folder = location
                entry = self._look_at(log_dir, name, os.fspath(folder.path), stat_journal(folder.journal))
                if entry is not None:
                    self._set_id(entry, self.folders.id_of(log_dir, name))
                    self._row_cache[log_dir][name] = entry
                    return entry.row
            ids = {run.id for run in self.folders.find()}
        hint = did_you_mean(run_id, ids) if len(run_id) <= 200 else ""
        raise RunNotFoundError(f"no run {run_id[:200]!r} in {', '.join(map(repr, self.log_dirs))}{hint}")

    def full_rows(
        self, run_ids: Iterable[str], *, columns: Iterable[str] = (), max_s: float | None = None
    ) -> list[RunRow]:
        """Return full rows of some runs by their ids, looking at these runs only.

        Args:
            run_ids: the runs.
            columns: fields that will be read from the rows.
            max_s: see `complete_rows`.

        Raises:
            RunNotFoundError: if there is no such run.
        """
        with self._lock:
            return self.complete_rows([self.row(run_id) for run_id in run_ids], columns=columns, max_s=max_s)

    def complete_rows(
        self, rows: Sequence[RunRow], *, columns: Iterable[str] = (), max_s: float | None = None
    ) -> list[RunRow]:
        """Return rows that `row` returned with full summaries.

        Args:
            rows: the rows.
            columns: fields that will be read from the rows.
            max_s: after this time, leave the remaining summaries brief; the next call continues.
        """
        step_values = [step_value for step_value in map(step_value_of, columns) if step_value is not None]
        with self._lock:
            # A run may have been removed since.
            entries = [self._row_cache[row.log_dir].get(row.name) for row in rows]
            if existing := [entry for entry in entries if entry is not None]:
                self._complete(step_values, None if max_s is None else time.monotonic() + max_s, existing)
            return [row if entry is None else entry.row for row, entry in zip(rows, entries, strict=True)]

    # Reading

    def _look_at(self, log_dir: str, name: str, path: str, journal: os.stat_result) -> _CacheEntry | None:
        key = journal_key(journal)
        try:
            annotated_ns = os.stat(path + "/annotations").st_mtime_ns
        except OSError:
            annotated_ns = 0
        entry = self._row_cache[log_dir].get(name)
        if entry is None or entry.row.summary.journal != key:
            return self._read_row(log_dir, name, RunFolder(path), key, annotated_ns)
        row = entry.row
        summary, annotations = row.summary, row.annotations
        if not entry.is_final:
            summary = self._with_state(row.folder, summary)
        if entry.annotated_ns != annotated_ns:
            annotations = read_annotations(row.folder) if annotated_ns else Annotations()
        if summary is row.summary and annotations is row.annotations:
            return entry
        return _CacheEntry(
            row.with_summary(summary, annotations),
            annotated_ns,
            entry.is_saved and entry.annotated_ns == annotated_ns,
        )

    def _read_row(
        self, log_dir: str, name: str, folder: RunFolder, key: JournalKey, annotated_ns: int
    ) -> _CacheEntry | None:
        if is_linked_out(log_dir, folder):
            return None
        summary = load_summary(folder, key)
        if summary is None:
            summary = brief_summary(folder, key, read_heartbeat(folder.heartbeat))
            old = self._row_cache[log_dir].get(name)
            if old is not None and old.row.summary.was_full and _is_continued(old.row.summary, summary):
                # Until it is computed again, what grows slowly is better than nothing.
                summary = msgspec.structs.replace(
                    old.row.summary, journal=key, overview=summary.overview, has_end=summary.has_end, is_full=False
                )
        elif not summary.has_end:
            summary = self._with_state(folder, summary)
        annotations = read_annotations(folder) if annotated_ns else Annotations()
        row = RunRow(name, log_dir, summary, annotations)
        return _CacheEntry(row, annotated_ns, is_saved=False)

    def _with_state(self, folder: RunFolder, summary: CatalogSummary) -> CatalogSummary:
        """Return the summary with the current state of a run that has no end."""
        heartbeat = read_heartbeat(folder.heartbeat)
        state = infer_writer_state(summary.overview.process, heartbeat, self._here)
        if state is summary.overview.state:
            return summary
        overview = msgspec.structs.replace(summary.overview, state=state)
        is_full = summary.is_full and summary.ranks is None  # the other ranks may have ended, too
        return msgspec.structs.replace(summary, overview=overview, is_full=is_full)

    def _complete(
        self, step_values: list[StepValue], deadline_s: float | None, entries: list[_CacheEntry] | None = None
    ) -> None:
        """Compute missing parts of summaries, of ended runs first: these are computed only once."""
        everything = entries or [entry for runs in self._row_cache.values() for entry in runs.values()]
        missing_values = _without_names(step_values, (entry.row for entry in everything))[:_MAX_STEP_VALUES]
        waiting = [
            entry
            for entry in everything
            if not entry.row.summary.is_full or (missing_values and entry.row.missing_values(missing_values))
        ]
        waiting.sort(key=self._turn)
        for entry in waiting:
            if deadline_s is not None and time.monotonic() >= deadline_s:
                return
            try:
                self._complete_run(entry, missing_values)
            except (OSError, SegmentError):
                # Asking again would not help, unless the journal changes; it is tried again in any case.
                run_key, journal = (entry.row.log_dir, entry.row.name), entry.row.summary.journal
                if self._unreadable.get(run_key) != journal:
                    self._unreadable[run_key] = journal
                    self._listing.forget()

    def _turn(self, entry: _CacheEntry) -> tuple[bool, bool, float, float]:
        """Return the order in which summaries are computed: running runs without any before those with an old one."""
        summary = entry.row.summary
        followed = None if summary.has_end else self._running.get(os.fspath(entry.row.folder.path))
        next_s = 0.0 if followed is None else followed.next_s
        return not summary.has_end, summary.was_full, next_s, -(summary.overview.started or 0.0)

    def _complete_run(self, entry: _CacheEntry, step_values: list[StepValue]) -> None:
        row = entry.row
        folder, key = row.folder, row.summary.journal
        may_change = row.summary.overview.state in {RunState.RUNNING, RunState.STALE}
        path = os.fspath(folder.path)
        running = self._running.get(path)
        began_s = time.monotonic()
        if running is not None and may_change and not row.summary.is_full and began_s < running.next_s:
            return
        run = self._open_run(folder) if running is None else running.run
        if row.summary.is_full:
            run.refresh_in_slices()
            summary = row.summary
        else:
            summary = full_summary(folder, run, row.summary)
        summary = _with_step_values(row.with_summary(summary), run, step_values)
        if may_change:
            # Following is cheap, but the aggregates are computed over all points.
            took_s = time.monotonic() - began_s
            self._running[path] = _FollowedRun(run, time.monotonic() + took_s / _REFRESH_SHARE)
            self._running.move_to_end(path)
            while len(self._running) > _MAX_RUNNING:
                self._running.popitem(last=False)
        else:
            self._running.pop(path, None)
            if summary.journal == key and summary.is_full:
                save_summary(folder, summary)
        entry.row = row.with_summary(summary)
        entry.is_saved = False

    def _link_children(self) -> None:
        everything = [entry for runs in self._row_cache.values() for entry in runs.values()]
        children = children_of([entry.row for entry in everything])
        for entry in everything:
            child_ids = children.get(id(entry.row), [])
            if child_ids != entry.row.children:
                entry.row = entry.row.with_children(child_ids)

    # The index

    def _load_index(self, log_dir: str) -> None:
        for entry in load_index(_index_path(log_dir), below=Path(log_dir)):
            row = RunRow(entry.name, log_dir, entry.summary, entry.annotations)
            self._row_cache[log_dir][entry.name] = _CacheEntry(row, entry.annotated_ns, is_saved=True)

    def _save_index(self, log_dir: str) -> None:
        """Write the index if it lacks more than a few ended runs: each of those costs one small file to read."""
        ended_rows = [entry for entry in self._row_cache[log_dir].values() if entry.row.summary.has_end]
        num_new = sum(not entry.is_saved for entry in ended_rows)
        if num_new <= max(16, len(ended_rows) // 20):
            return
        entries = [
            IndexEntry(entry.row.name, entry.row.summary, entry.annotated_ns, entry.row.annotations)
            for entry in ended_rows
        ]
        with contextlib.suppress(OSError):  # a read-only folder
            save_index(_index_path(log_dir), entries, below=Path(log_dir))
            for entry in ended_rows:
                entry.is_saved = True


def _without_names(step_values: list[StepValue], rows: Iterable[RunRow]) -> list[StepValue]:
    """Return values at steps without names of metrics, such as ``recall@5``."""
    keys = {at.key for at in step_values}
    names = {name for row in rows for name in keys & row.summary.metrics.keys()} if keys else set()
    return [at for at in dict.fromkeys(step_values) if at.key not in names]


def _with_step_values(row: RunRow, run: StoredRun, step_values: list[StepValue]) -> CatalogSummary:
    """Return the summary of a row with more values at steps, computed from its columns."""
    kept_values = [at for at in map(step_value_of, row.summary.step_values) if at is not None and at not in step_values]
    names = {at: name for at in [*kept_values, *step_values] if (name := row.metric_name(at.metric)) is not None}
    latest = list(names)[-_MAX_STEP_VALUES:]
    if not latest:
        return row.summary
    values = run.values_at([(names[at], at.step) for at in latest])
    return msgspec.structs.replace(row.summary, step_values={at.key: values[names[at], at.step] for at in latest})


def _index_path(log_dir: str) -> Path:
    return index_path(Path(log_dir, OWN_FOLDER))


def known_fields(rows: Sequence[RunRow]) -> list[str]:
    """Return all fields that some row has: facts first, then config and results, then metrics."""
    summaries = [row.summary for row in rows]
    custom = [name for name in keys_of(row.annotations.values for row in rows) if name.startswith("custom.")]
    return [
        *FACTS,
        *(f"git.{name}" for name in keys_of(summary.git for summary in summaries)),
        *custom,
        *(f"config.{key}" for key in keys_of(summary.config for summary in summaries)),
        *(f"summary.{key}" for key in keys_of(summary.results for summary in summaries)),
        *(
            f"{name}.{aggregate}"
            for name in keys_of(summary.metrics for summary in summaries)
            for aggregate in AGGREGATES
        ),
    ]


def _is_continued(old: CatalogSummary, new: CatalogSummary) -> bool:
    return new.journal[0] >= old.journal[0] and new.overview.started == old.overview.started


def sort_rows(rows: Iterable[RunRow], field: str, *, is_descending: bool = False) -> list[RunRow]:
    """Return rows in the order of a field: numbers before texts, and rows without a value last in both directions."""

    def key(row: RunRow) -> tuple[int, float, str]:
        value = row.get(field)
        if isinstance(value, (list, tuple)):
            value = ", ".join(map(str, value))
        if isinstance(value, (bool, int, float)):
            return (0, float(value), "")
        return (1, 0.0, str(value).casefold())

    def is_missing(row: RunRow) -> bool:
        value = row.get(field)
        return value is None or value != value  # noqa: PLR0124 - NaN

    rows = list(rows)
    present = [row for row in rows if not is_missing(row)]
    return sorted(present, key=key, reverse=is_descending) + [row for row in rows if is_missing(row)]


def pinned_first(rows: Iterable[RunRow], names: Iterable[str] = ()) -> list[RunRow]:
    """Return rows with those first that are pinned, or named here; else in the same order."""
    pinned_names = set(names)
    return sorted(rows, key=lambda row: not (row.id in pinned_names or row.get("pinned") is True))
