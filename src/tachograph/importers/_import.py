"""Makes run folders from the logs of other tools; `tacho import` is this function.

The journal of an imported run has two parts. The first is final: `.tacho/import.json` has its size and the position in
the source that belongs to it. The second part comes from the end of the source, or from an import that was killed. The
next import reads the source from the stored position and compares its lines with the second part. As long as both are
equal, nothing is written; at the first difference, the rest of the journal is truncated and written anew. So an import
can be killed and repeated at any time, and an unchanged source changes nothing.

The journal is written before the position that includes it. A position is stored for every few megabytes, so memory
does not grow with the source.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import zlib
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from tachograph._base.files import open_to_append, read_small, replace_file, write_all
from tachograph._base.typed import decode_json
from tachograph.exceptions import ConfigError, TachographError
from tachograph.importers._read import find_runs
from tachograph.importers._source import Damage, Position, RowSource, RunSource
from tachograph.journal import (
    JournalFollower,
    RunFolder,
    claim_run_folder,
    journal_size,
    list_runs,
    lock_run_folder,
    open_journal,
    restore_journal,
    stat_journal,
)
from tachograph.media import MediaImport
from tachograph.records import (
    METRIC_KINDS,
    OMIT,
    SCHEMA_VERSION,
    MaskingBudget,
    ValueProblem,
    check_run_name,
    encode,
    is_frozen,
    is_number,
    mask_mapping,
    step_of,
    suggest_run_name,
    to_plain,
)

__all__ = ["ImportReport", "import_runs"]

_COMMIT_BYTES = 4 << 20
_WRITE_BYTES = 256 << 10
_FIRST_BYTES = 4 << 10
_MAX_CURSOR_BYTES = 64 << 20
_MAX_METRICS = 10_000
_NOT_METRICS = {"global_step", "time"}


class ImportReport(msgspec.Struct):
    """The result of importing one run of a source."""

    format: str
    source: str
    run: str
    outcome: str = "unchanged"
    """`created`, `updated`, `unchanged`, `empty` if the source has no data, or `failed`."""
    num_records: int = 0
    """Records that were added, or would be."""
    num_rows: int = 0
    """The added records that have metrics."""
    metrics: dict[str, int] = {}
    """The number of points of each metric that were added."""
    first_step: int | None = None
    last_step: int | None = None
    damage: list[Damage] = []
    left_out: dict[str, int] = {}
    """The number of items of the source that are not imported, by kind."""
    notes: list[str] = []
    error: str | None = None

    def add(self, record: dict[str, Any]) -> None:
        """Count a record."""
        self.num_records += 1
        if record["event"] not in METRIC_KINDS:
            return
        self.num_rows += 1
        for name, value in record.items():
            if name not in _NOT_METRICS and is_number(value) and (name in self.metrics or self._has_room()):
                self.metrics[name] = self.metrics.get(name, 0) + 1
        step = step_of(record)
        if step is not None:
            self.first_step = step if self.first_step is None else min(step, self.first_step)
            self.last_step = step if self.last_step is None else max(step, self.last_step)

    def _has_room(self) -> bool:
        return len(self.metrics) < _MAX_METRICS


def import_runs(
    format_name: str,
    paths: Iterable[str | os.PathLike[str]],
    log_dir: str,
    *,
    name: str | None = None,
    dry_run: bool = False,
) -> list[ImportReport]:
    """Make a run folder from each run in some logs, or add new records to it; return a report on each.

    Args:
        format_name: the name of an importer, such as `tensorboard`.
        paths: files and folders.
        log_dir: the folder that contains the runs.
        name: the name of the run, if there is only one.
        dry_run: only report the changes that an import would make.

    Raises:
        ConfigError: if the only path does not exist or is a log of another format, or if `name` does not fit. Of
            several paths, such a path is a report of its own.
    """
    paths = list(paths)
    sources: list[RunSource] = []
    reports: list[ImportReport] = []
    for path in paths:
        try:
            sources += (source for source in find_runs(format_name, path) if not _is_repeated(source, sources))
        except ConfigError as error:
            if len(paths) == 1:
                raise
            reports.append(ImportReport(format_name, os.fspath(path), "", outcome="failed", error=str(error)))
    if name is not None:
        check_run_name(name)
        if len({source.id for source in sources}) > 1:
            raise ConfigError(f"--name {name}: there are {len(sources)} runs, and only one can have the name")
    run_folders = _find_imports(log_dir)
    for source in sources:
        run_id = hashlib.blake2b(f"{format_name} {source.id}".encode(), digest_size=8).hexdigest()
        folder = run_folders.get(run_id)
        run_name = folder.name if folder else name or suggest_run_name(source.name) or "imported"
        report = ImportReport(format_name, str(source.path), run_name)
        try:
            if folder is not None and name not in (None, folder.name):
                raise ConfigError(f"it was imported as {folder.name!r}; delete that run to give it another name")
            folder = _import_run(source, folder, log_dir, run_id, report, dry_run=dry_run)
            if folder is not None:
                run_folders[run_id] = folder  # another source may be a part of the same run
        except (TachographError, EOFError, OSError, zlib.error) as error:
            report.outcome, report.error = "failed", _describe_error(error)
        report.damage, report.left_out = source.damage, dict(source.left_out)
        reports.append(report)
    return reports


def _is_repeated(source: RunSource, sources: list[RunSource]) -> bool:
    """Return whether another path has led to the same rows, as each checkpoint of a training does."""
    return isinstance(source, RowSource) and any(
        isinstance(other, RowSource) and (other.id, other.path) == (source.id, source.path) for other in sources
    )


def _describe_error(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    return str(error)


def _find_imports(log_dir: str) -> dict[str, RunFolder]:
    """Return the imported runs by their run id, which depends only on the format and the id of the source."""
    folders: dict[str, RunFolder] = {}
    for folder in list_runs(log_dir):
        try:
            first = JournalFollower(folder.journal, block_bytes=_FIRST_BYTES).poll_block()
        except OSError:  # a run of another user
            continue
        if first and "imported_from" in first[0]:
            folders[str(first[0].get("run_id"))] = folder
    return folders


def _import_run(
    source: RunSource, folder: RunFolder | None, log_dir: str, run_id: str, report: ImportReport, *, dry_run: bool
) -> RunFolder | None:
    """Import a run into a folder, or into a new one; return the folder."""
    with contextlib.ExitStack() as stack:
        if folder is not None and not dry_run and not stack.enter_context(lock_run_folder(folder)):
            raise ConfigError(f"run {folder.name!r} is being written by another process")
        cursor = _ImportCursor() if folder is None else _load_cursor(folder)
        records = source.read(cursor.position)
        item = next(records, None)
        if item is None and folder is None:
            report.outcome = "empty"
            return None
        if folder is None and not dry_run:
            claim = claim_run_folder(log_dir, report.run, resume=False)
            stack.callback(claim.release)
            folder = claim.folder
            if folder.name != report.run:
                report.notes.append(f"the name {report.run!r} is in use, so the run is named {folder.name!r}")
                report.run = folder.name
        elif folder is None and RunFolder(Path(log_dir, report.run)).exists():
            report.notes.append(f"the name {report.run!r} is in use, so the run would get a number")
        is_new = folder is None or not folder.exists() or not stat_journal(folder.journal).st_size
        journal = _ImportedJournal(folder, cursor, report.run, stack, dry_run=dry_run)
        origin = {"format": report.format, "id": source.id, "path": str(source.path.resolve()), "name": source.name}
        media = MediaImport(None if dry_run else folder)
        while item is not None:
            record, position = item
            if record["event"] == "media":
                record = media.store(record)
                problems = Counter(item["problem"] for item in record["items"] if "problem" in item)
                source.left_out.update({f"{record['kind']}: {reason}": count for reason, count in problems.items()})
            if record["event"] == "start":
                identity = {"run_name": report.run, "run_id": run_id, "schema": SCHEMA_VERSION}
                identity |= {"resumed": journal.offset > 0, "imported_from": origin}
                record = {"event": "start", **_time_of(record), **identity, **record, **identity}
            plain, num_problems = _to_plain(record)
            if num_problems:
                source.left_out["value that cannot be stored"] += num_problems
            if journal.add(encode(plain) + b"\n"):
                report.add(plain)
            if position is not None:
                journal.commit_later(position)
            item = next(records, None)
        journal.finish()
        if report.num_records:
            report.outcome = "created" if is_new else "updated"
        return folder


def _time_of(record: dict[str, Any]) -> dict[str, Any]:
    return {"time": record["time"]} if "time" in record else {}


def _to_plain(record: dict[str, Any]) -> tuple[dict[str, Any], int]:
    """Return a record as JSON types, with secrets masked, and the number of values that are missing or cut."""
    texts = {name: value for name, value in record.items() if name != "event" and not is_frozen(value)}
    if not texts and all(map(str.isascii, record)):
        return record, 0
    problems: list[ValueProblem] = []
    with MaskingBudget():
        plain = to_plain({name: value for name, value in record.items() if name != "event"}, "", problems)
        if plain is OMIT:
            plain = {}
        return {"event": record["event"], **mask_mapping(plain)}, len(problems)


# The journal ---------------------------------------------------------------------------------------------------------


class _ImportCursor(msgspec.Struct):
    """How much of a journal is final, and the position in the source that belongs to it."""

    journal_bytes: int = 0
    position: Position = {}


def _cursor_path(folder: RunFolder) -> Path:
    return folder.private / "import.json"


def _load_cursor(folder: RunFolder) -> _ImportCursor:
    """Return the stored cursor; without one, the whole source is read and compared with the journal."""
    with contextlib.suppress(OSError, msgspec.MsgspecError):
        cursor = decode_json(read_small(_cursor_path(folder), _MAX_CURSOR_BYTES, below=folder.path), _ImportCursor)
        if 0 <= cursor.journal_bytes <= journal_size(folder.journal):
            return cursor
    return _ImportCursor()


class _ImportedJournal:
    """Compares lines with the journal after the cursor, and appends from the first difference on."""

    def __init__(
        self,
        folder: RunFolder | None,
        cursor: _ImportCursor,
        name: str,
        stack: contextlib.ExitStack,
        *,
        dry_run: bool,
    ) -> None:
        self.offset = cursor.journal_bytes
        """Where the next line goes."""
        self._folder = folder
        self._stack = stack
        self._name = name
        self._dry_run = dry_run
        self._fd = -1
        self._existing_journal: BinaryIO | None = None
        self._size = 0
        self._buffer = bytearray()
        self._committed_bytes = cursor.journal_bytes
        self._next_commit: tuple[int, Position] | None = None
        if folder is not None and folder.exists() and stat_journal(folder.journal).st_size:
            self._existing_journal = stack.enter_context(open_journal(folder.journal))
            self._size = journal_size(folder.journal)

    def add(self, line: bytes) -> bool:
        """Add a line; return False if the journal has it already."""
        if self.offset < self._size:
            if self._read_existing(len(line)) == line:
                self.offset += len(line)
                return False
            self._truncate()
        self.offset += len(line)
        if self._folder is None or self._dry_run:
            return True
        if self._fd < 0 and self._existing_journal is None:
            # All at once: the next import recognises the run by this line.
            replace_file(self._folder.journal, line, below=self._folder.path)
            self._open(self._folder)
            return True
        self._buffer += line
        if len(self._buffer) >= _WRITE_BYTES:
            self._flush()
        return True

    def _read_existing(self, num_bytes: int) -> bytes:
        assert self._existing_journal is not None  # noqa: S101 - there are lines
        self._existing_journal.seek(self.offset)
        return self._existing_journal.read(num_bytes)

    def _open(self, folder: RunFolder) -> None:
        restore_journal(folder.journal, below=folder.path)  # if it is compressed: it is continued now
        self._fd = open_to_append(folder.journal, below=folder.path)
        self._stack.callback(os.close, self._fd)

    def commit_later(self, position: Position) -> None:
        """Mark all lines so far as final; store the position every few megabytes."""
        self._next_commit = self.offset, position
        if self.offset - self._committed_bytes >= _COMMIT_BYTES:
            self._commit()

    def finish(self) -> None:
        """Write the rest, and truncate lines that the source no longer has."""
        if self.offset < self._size and self._find_other_start() is None:
            self._truncate()
        self._flush()
        self._commit()

    def _commit(self) -> None:
        self._flush()
        if (
            self._next_commit is None
            or self._folder is None
            or self._dry_run
            or self._next_commit[0] == self._committed_bytes
        ):
            return
        self._committed_bytes, position = self._next_commit
        data = msgspec.json.encode(_ImportCursor(self._committed_bytes, position))
        replace_file(_cursor_path(self._folder), data, below=self._folder.path)

    def _flush(self) -> None:
        if self._buffer:
            if self._fd < 0 and self._folder is not None:
                self._open(self._folder)
            write_all(self._fd, bytes(self._buffer))
            self._buffer.clear()

    def _truncate(self) -> None:
        """Remove the lines that differ, unless a process has recorded into the run since."""
        if self._find_other_start() is not None:
            raise ConfigError(f"run {self._name!r} was continued after its import, so nothing can be added to it")
        self._size = self.offset
        if not self._dry_run:
            if self._fd < 0 and self._folder is not None:
                self._open(self._folder)
            os.ftruncate(self._fd, self.offset)

    def _find_other_start(self) -> dict[str, Any] | None:
        assert self._folder is not None  # noqa: S101 - there are lines
        follower = JournalFollower(self._folder.journal, self.offset)
        while records := follower.poll_block():
            for record in records:
                if record["event"] == "start" and "imported_from" not in record:
                    return record
        return None
