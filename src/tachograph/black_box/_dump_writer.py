"""Writes dumps: complete or not at all, few, and without ever raising into the program.

A dump is written into a temporary folder next to its place and renamed when it is complete, so a process that is killed
leaves no half of one. The record `dump` follows in the journal. A run has at most `max_dumps` dumps of `max_bytes` in
all, counted on disk, because a resumed run continues to count; the first ones are kept. Of one alert there is one dump,
and of one reason none within `_MIN_GAP_S` of the last.

Any thread may ask for a dump: the writer thread for an alert, the training thread for an exception, a signal handler
that interrupted one of them. One dump is written at a time. A second request waits a little; a signal handler that has
interrupted the first one on its own thread gets nothing.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tachograph._base.files import create_file, make_folder, move_folder, read_small, temporary_path, write_all
from tachograph._base.guard import faults, guard, suppress
from tachograph.black_box._format import (
    DUMP_FILE,
    DumpDocument,
    DumpFile,
    Verdict,
    dump_names,
    dumps_folder,
    encode_part,
)
from tachograph.journal import RunFolder
from tachograph.records import to_plain

__all__ = ["DumpContext", "DumpPart", "DumpWriter"]

_MIN_GAP_S = 60.0
_MAX_INLINE_BYTES = 16 << 10
"""A larger part gets a file of its own."""

_MAX_WAIT_S = 5.0
_STALE_AFTER_S = 600.0
_MAX_FILE_BYTES = 1 << 30


class DumpContext:
    """A dump that is being written, for the functions that contribute parts.

    Attributes:
        reason: why the dump is made, such as `not_finite` or `exception`.
        step: the last known step.
        time_s: the wall time.
        alert: the fields of the alert that caused the dump, if one did.
        error: the exception that caused the dump, if one did.
        details: facts that the caller passed to `DumpWriter.write`.
        verdict: the cause, if a part has found one.
        run_folder: the folder of the run.
        folder: the temporary folder, for a library that writes a file by its path; others use `add_file`.
    """

    def __init__(
        self,
        reason: str,
        folder: Path,
        *,
        step: int | None,
        time_s: float,
        alert: Mapping[str, Any] | None,
        error: BaseException | None,
        details: Mapping[str, Any],
        run_folder: RunFolder,
    ) -> None:
        self.reason = reason
        self.run_folder = run_folder
        self.folder = folder
        self.step = step
        self.time_s = time_s
        self.alert = alert
        self.error = error
        self.details = details
        self.verdict: Verdict | None = None

    def add_file(self, name: str, data: bytes) -> None:
        """Write a file beside `dump.json`.

        Raises:
            OSError: if it cannot be written.
        """
        descriptor = create_file(self.folder / name, below=self.run_folder.path)
        try:
            write_all(descriptor, data)
        finally:
            os.close(descriptor)


DumpPart = Callable[[DumpContext], Mapping[str, Any] | None]
"""Returns a part of the dump as plain values, or None if it has nothing to say about this one."""


class DumpWriter:
    """Writes the dumps of one process of a run.

    Args:
        folder: returns the folder of the run, which may move; None while a rank does not know it.
        add_record: adds a record to the journal.
        max_dumps: how many dumps the run may have.
        max_bytes: how many bytes they may have in all.
        rank: the rank of this process.
    """

    def __init__(
        self,
        folder: Callable[[], RunFolder | None],
        add_record: Callable[[str, dict[str, Any]], None],
        *,
        max_dumps: int = 8,
        max_bytes: int = 256 << 20,
        rank: int = 0,
    ) -> None:
        self._folder = folder
        self._add_record = add_record
        self._max_dumps = max_dumps
        self._max_bytes = max_bytes
        self._rank = rank
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._owner: int | None = None
        self._written_at: dict[str, float] = {}
        self._alert_ids: set[str] = set()
        self._parts: dict[str, DumpPart] = {}

    @property
    def rank(self) -> int:
        """The rank of this process."""
        return self._rank

    def add_part(self, name: str, part: DumpPart) -> None:
        """Add a function that contributes to every dump; the parts are collected in the order of their addition."""
        self._parts[name] = part

    def write(
        self,
        reason: str,
        *,
        step: int | None = None,
        alert: Mapping[str, Any] | None = None,
        error: BaseException | None = None,
        details: Mapping[str, Any] | None = None,
        verdict: Verdict | None = None,
        wait_s: float = _MAX_WAIT_S,
    ) -> str | None:
        """Write a dump and its record; return its path, or None if there is none.

        Never raises. A reason is a word of lower-case letters, digits and underscores. Waits up to `wait_s` for another
        dump to be complete.
        """
        if os.getpid() != self._pid or self._owner == threading.get_ident():
            return None  # a forked worker; a signal handler that interrupted a dump of its own thread
        if not self._lock.acquire(timeout=wait_s):
            return None
        self._owner = threading.get_ident()
        try:
            with guard("writing a dump"):
                return self._write(reason, step, alert, error, details or {}, verdict)
        finally:
            self._owner = None
            self._lock.release()
        return None

    def may_write(self, reason: str, alert_id: str | None = None) -> bool:
        """Return whether the limits allow a dump."""
        return not self.limit_reached(reason, alert_id)

    def limit_reached(self, reason: str, alert_id: str | None = None) -> str:
        """Return which limit forbids a dump, as a sentence for the user; empty if none does."""
        if os.getpid() != self._pid:
            return "this is a forked process"
        if alert_id is not None and alert_id in self._alert_ids:
            return "its alert has a dump"
        last_at = self._written_at.get(reason)
        if last_at is not None and time.monotonic() - last_at < _MIN_GAP_S:
            return f"the last dump for this reason is less than {_MIN_GAP_S:g} s old"
        folder = self._folder()
        if folder is None:
            return "the run has no folder yet"
        if len(dump_names(dumps_folder(folder, self._rank))) >= self._max_dumps:
            return f"the run has {self._max_dumps} dumps, which is the limit (black_box_max_dumps)"
        return ""

    def _write(
        self,
        reason: str,
        step: int | None,
        alert: Mapping[str, Any] | None,
        error: BaseException | None,
        details: Mapping[str, Any],
        verdict: Verdict | None,
    ) -> str | None:
        alert_id = None if alert is None or alert.get("id") is None else str(alert["id"])
        run_folder = self._folder()
        if run_folder is None or not self.may_write(reason, alert_id):
            return None
        below, dumps = run_folder.path, dumps_folder(run_folder, self._rank)
        started_at = time.monotonic()
        names = dump_names(dumps)
        name = f"{int(names[-1].partition('-')[0]) + 1 if names else 1}-{reason}"
        temporary = temporary_path(dumps / name)
        try:
            make_folder(temporary, below=below)
            context = DumpContext(
                reason,
                temporary,
                step=step,
                time_s=time.time(),
                alert=alert,
                error=error,
                details=details,
                run_folder=run_folder,
            )
            context.verdict = verdict
            document = self._collect(context, alert_id, self._max_bytes - _folder_bytes(dumps))
            move_folder(temporary, dumps / name, below=below)
        except faults(OSError) as fault:
            shutil.rmtree(temporary, ignore_errors=True)
            self._add_record(
                "telemetry_error", {"kind": "dump_not_written", "field": reason, "reason": f"{fault.strerror or fault}"}
            )
            return None
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        self._written_at[reason] = time.monotonic()
        if alert_id is not None:
            self._alert_ids.add(alert_id)
        _remove_stale(dumps)
        rule = None if alert is None else alert.get("rule")
        self._add_record("dump", _record_fields(name, document, rule, time.monotonic() - started_at))
        return str(dumps / name)

    def _collect(self, context: DumpContext, alert_id: str | None, free_bytes: int) -> DumpDocument:
        """Collect the parts into the temporary folder and write `dump.json`.

        Raises:
            OSError: if it cannot be written.
        """
        document = DumpDocument(
            reason=context.reason, time=context.time_s, step=context.step, rank=self._rank, alert_id=alert_id
        )
        for name, part in self._parts.items():
            self._add_part(document, context, name, part)
        document.verdict = context.verdict
        document.files = _limit_files(context.folder, free_bytes, document.problems)
        context.add_file(DUMP_FILE, encode_part(to_plain(document, "dump", [])))
        return document

    def _add_part(self, document: DumpDocument, context: DumpContext, name: str, part: DumpPart) -> None:
        def on_fault(_operation: str, fault: Exception) -> None:
            document.problems.append(f"{name}: {type(fault).__name__}"[:200])

        with guard(f"collecting the part {name!r} of a dump", on_fault):
            content = part(context)
            if content is None:
                return
            data = encode_part(content)
            if len(data) <= _MAX_INLINE_BYTES:
                document.parts[name] = dict(content)
            else:
                context.add_file(f"{name}.json", data)
                document.parts[name] = {"file": f"{name}.json"}


def _limit_files(folder: Path, free_bytes: int, problems: list[str]) -> list[DumpFile]:
    """Delete the largest files until the rest fits; return the rest with sizes and hashes."""
    sizes = {entry.name: entry.stat(follow_symlinks=False).st_size for entry in os.scandir(folder) if entry.is_file()}
    for name in sorted(sizes, key=sizes.__getitem__, reverse=True):
        if sum(sizes.values()) <= free_bytes and sizes[name] <= _MAX_FILE_BYTES:
            break
        problems.append(f"{name}: {sizes.pop(name)} bytes are more than the run may still dump")
        (folder / name).unlink()
    return [
        DumpFile(
            name=name,
            size_bytes=size_bytes,
            sha256=hashlib.sha256(read_small(folder / name, _MAX_FILE_BYTES)).hexdigest(),
        )
        for name, size_bytes in sorted(sizes.items())
    ]


def _record_fields(name: str, document: DumpDocument, rule: Any, took_s: float) -> dict[str, Any]:
    fields = {
        "dump": name,
        "reason": document.reason,
        "global_step": document.step,
        "alert_id": document.alert_id,
        "rule": rule,
        "verdict": to_plain(document.verdict, "verdict", []) if document.verdict is not None else None,
        "parts": list(document.parts),
        "files": [{"name": file.name, "size_bytes": file.size_bytes, "sha256": file.sha256} for file in document.files],
        "problems": document.problems or None,
        "took_s": round(took_s, 3),
    }
    return {name: value for name, value in fields.items() if value is not None}


def _folder_bytes(folder: Path) -> int:
    num_bytes = 0
    with suppress(OSError):
        for path in folder.rglob("*"):
            num_bytes += path.lstat().st_size if path.is_file() else 0
    return num_bytes


def _remove_stale(folder: Path) -> None:
    """Remove temporary folders of processes that were killed while they wrote a dump."""
    with suppress(OSError):
        for path in folder.glob(".*.tmp"):
            if time.time() - path.lstat().st_mtime > _STALE_AFTER_S:
                shutil.rmtree(path, ignore_errors=True)
