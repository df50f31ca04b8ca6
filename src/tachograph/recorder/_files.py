"""The files of a run while it is recorded.

The writer thread appends to the journal and to its CSV mirror, and checks about once a second whether the files are
still there. A deleted or replaced journal is restored from the open file descriptor; a folder that another process took
after a deletion is left to it, and this run continues under another name. The journal always comes first: a fault of
the mirror never delays it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec

from tachograph._base import ranks
from tachograph._base.clock import Clock
from tachograph._base.files import make_folder, replace_file
from tachograph._base.guard import faults, guard, reraise_from_signal_handler, suppress
from tachograph.journal import (
    Appender,
    Claim,
    ControlFile,
    CsvMirror,
    Heartbeat,
    RunFolder,
    claim_run_folder,
    complete_csv_later,
    count_records,
    this_process,
    uptime_s,
)
from tachograph.recorder._host_files import HostFile, has_host_files
from tachograph.records import StepTable

__all__ = ["Files", "RunFiles", "WriterState"]


class ReportError(Protocol):
    """Records a fault of telemetry itself as a `telemetry_error`."""

    def __call__(self, kind: str, field: str, **details: Any) -> None:
        """Record a fault: its kind, the affected file or field, and further fields."""
        ...


class WriterState(NamedTuple):
    """The fields of a heartbeat that describe the writer."""

    num_waiting: int = 0
    num_dropped: int = 0
    num_open_alerts: int = 0
    num_critical_alerts: int = 0
    clock_jumps_s: float = 0.0
    media_pending: int = 0
    iteration: int | None = None
    phase: str = ""
    phase_since: float = 0.0
    collective: str = ""
    location: str = ""
    last_collective: str = ""
    energy_kwh: Mapping[str, float] = {}


class Files(Protocol):
    """The files that a writer writes to."""

    control_file: ControlFile
    is_lost: bool
    """Whether the journal was deleted and cannot be restored."""

    @property
    def folder(self) -> RunFolder:
        """The folder in which the run is recorded now."""
        ...

    @property
    def has_pending(self) -> bool:
        """Whether data could not be written yet."""
        ...

    @property
    def num_pending_lines(self) -> int:
        """The number of lines that could not be written yet."""
        ...

    @property
    def is_waiting(self) -> bool:
        """Whether lines wait for a folder that another process creates."""
        ...

    @property
    def can_append(self) -> bool:
        """Whether lines reach the file when they are appended, and do not wait in memory."""
        ...

    def append(self, data: bytes, records: Sequence[StepTable | dict[str, Any]]) -> int:
        """Append lines; return how many were dropped."""
        ...

    def catch_up(self, *, budget_s: float, force: bool = False) -> None:
        """Let the CSV mirror catch up with the journal, within a time budget."""
        ...

    def check(self) -> None:
        """Check that the files are in place and intact, and repair them."""
        ...

    def beat(self, state: WriterState | None = None) -> None:
        """Write the heartbeat; without a state, with the last one."""
        ...

    def ensure_control_file(self, log_every: int) -> None:
        """Create the control file, once."""
        ...

    def close(self) -> None:
        """Sync everything to disk."""
        ...

    def release(self) -> None:
        """Release the claim on the folder."""
        ...

    def abandon(self) -> None:
        """In a forked child: leave the files to the parent."""
        ...


class RunFiles:
    """The claimed folder with its journal, mirror, heartbeat and control file. Used only by the writer thread."""

    def __init__(
        self,
        claim: Claim,
        run_id: str,
        clock: Clock,
        *,
        csv: bool,
        report_error: ReportError,
        yield_to_writer: Callable[[], None],
    ) -> None:
        self._claim = claim
        self._run_id = run_id
        self._clock = clock
        self._report_error = report_error
        self._write_buffer = yield_to_writer
        self._process = this_process()
        self._job = ""
        self._mirror = CsvMirror(claim.folder, yield_to_writer=self._yield_to_writer) if csv else None
        if self._mirror is not None:
            self._mirror.load()  # before the journal grows: its cursor refers to the journal as the last writer left it
        self._appender = Appender(claim.folder.journal)
        self._start_bytes = self._appender.size_bytes
        self._host: HostFile | None = None
        """The file of the other ranks of this host, in a large job."""
        self._state = WriterState()
        self._mirror_fault = ""
        self._write_failed_at: float | None = None
        self._is_yielding = False
        self.is_lost = False
        self.is_waiting = False
        self._has_control_file = False
        self.control_file = ControlFile(claim.folder)
        self.on_move: Callable[[RunFolder, str], None] = lambda folder, reason: None
        self.on_restore: Callable[[], None] = lambda: None
        self.print_line: Callable[[str], None] = lambda line: None

    @property
    def folder(self) -> RunFolder:
        """The folder in which the run is recorded now."""
        return self._claim.folder

    @property
    def has_pending(self) -> bool:
        """Whether data could not be written yet."""
        return bool(self._appender.pending) or (self._host is not None and bool(self._host.pending))

    @property
    def num_pending_lines(self) -> int:
        """The number of lines that could not be written yet."""
        num_host_lines = self._host.pending.count(b"\n") if self._host is not None else 0
        return self._appender.pending.count(b"\n") + num_host_lines

    @property
    def can_append(self) -> bool:
        """Whether lines reach the file when they are appended, and do not wait in memory."""
        return not self._appender.pending

    # Writing -------------------------------------------------------------------------------------------------------

    def append(self, data: bytes, records: Sequence[StepTable | dict[str, Any]]) -> int:
        """Append lines to the journal and their records to the mirror; return how many lines were dropped."""
        num_host_dropped = self._host.append() if self._host is not None else 0
        return num_host_dropped + self._append(data, records)

    def _append(self, data: bytes, records: Sequence[StepTable | dict[str, Any]]) -> int:
        if not data and not self._appender.pending:
            return 0
        follows_on = not self._appender.pending
        start = self._appender.size_bytes
        fault = self._appender.append(data)
        num_dropped, self._appender.num_dropped_lines = self._appender.num_dropped_lines, 0
        if fault is not None:
            if self._write_failed_at is None:
                self._write_failed_at = self._clock.steady_s()
                self._report_error("write_failed", "metrics.jsonl", reason=str(fault))
            return num_dropped
        if self._write_failed_at is not None:
            self._report_error(
                "write_recovered", "metrics.jsonl", after_s=self._clock.steady_s() - self._write_failed_at
            )
            self._write_failed_at = None
        if self._mirror is not None and follows_on and not self._is_yielding:
            with self._isolate(self._mirror):
                self._mirror.add(records, start, self._appender.size_bytes)
        return num_dropped

    def catch_up(self, *, budget_s: float, force: bool = False) -> None:
        """Let the CSV mirror catch up with the journal, within a time budget."""
        if self._mirror is not None and not self._appender.pending:
            with self._isolate(self._mirror):
                self._mirror.catch_up(self._appender.size_bytes, budget_s=budget_s, force=force)
                self._mirror_fault = ""

    def close(self) -> None:
        """Sync everything to disk and close the files; a mirror that is behind is completed by another process."""
        if self._host is not None:
            with guard("closing the file of the host"):
                self._host.close()
        self._appender.sync()
        if self._mirror is not None:
            self._mirror.close()
            if not self._appender.pending and self._mirror.journal_bytes < self._appender.size_bytes:
                with suppress(OSError):  # the folder was deleted
                    self._complete_mirror_later(self._mirror)
        self._appender.close()

    def _complete_mirror_later(self, mirror: CsvMirror) -> None:
        num_missing = count_records(self.folder.journal, mirror.journal_bytes)
        what_next = "a background process completes it"
        try:
            complete_csv_later(self.folder)
        except faults(OSError) as error:
            what_next = f"complete it with: tacho show {self.folder.name} --rebuild-csv ({error})"
        noun = "record" if num_missing == 1 else "records"
        self.print_line(f"metrics.csv lacks {num_missing:,} {noun} that the journal has; {what_next}")

    def release(self) -> None:
        """Release the claim on the folder."""
        self._claim.release()

    def abandon(self) -> None:
        """In a forked child: leave the files to the parent."""
        self._appender.close()
        if self._host is not None:
            self._host.abandon()

    def _yield_to_writer(self) -> None:
        """Let the journal be written during a long task of the mirror; the mirror itself catches up afterwards."""
        if not self._is_yielding:
            self._is_yielding = True
            try:
                self._write_buffer()
            finally:
                self._is_yielding = False

    @contextlib.contextmanager
    def _isolate(self, mirror: CsvMirror) -> Iterator[None]:
        """Isolate the journal from the mirror: OS errors are retried later, any other error stops the mirror."""
        try:
            yield
        except faults(FileNotFoundError):
            mirror.close_after_error()  # the whole folder is gone; the next check finds and reports it
        except faults(OSError) as error:
            mirror.close_after_error()
            if str(error) != self._mirror_fault:
                self._mirror_fault = str(error)
                self._report_error("csv_behind", "metrics.csv", reason=f"{error}; it will catch up")
        except Exception as error:
            reraise_from_signal_handler(error)
            self._mirror = None
            self._report_error("csv_stopped", "metrics.csv", reason=f"{type(error).__name__}: {error}")
            raise

    # Maintenance ---------------------------------------------------------------------------------------------------

    def beat(self, state: WriterState | None = None) -> None:
        """Write the heartbeat; without a state, with the last one."""
        self._state = state or self._state
        # A framework may create the process group after the run has started, and destroy it before the last heartbeat.
        self._job = ranks.job_id() or self._job
        heartbeat = Heartbeat(
            run_id=self._run_id,
            process=self._process,
            time=self._clock.wall_s(),
            uptime_s=uptime_s(),
            journal_bytes=self._appender.size_bytes,
            start_bytes=self._start_bytes,
            **self._state._asdict(),
            job=self._job,
        )
        with suppress(OSError):  # a full disk; readers still have the pid
            replace_file(self.folder.heartbeat, msgspec.json.encode(heartbeat), below=self.folder.path)
        self._check_host()

    def _check_host(self) -> None:
        """Open the file of this host once the job is known to be large."""
        if self._host is not None:
            self._host.check()
        elif self._job and has_host_files(ranks.world_size()):
            self._host = HostFile(self.folder, 0, self._job, ranks.world_size())

    def ensure_control_file(self, log_every: int) -> None:
        """Create `control.json` with the current values, once."""
        if not self._has_control_file:
            with suppress(OSError):  # a full disk: retried later; requests are read anyway
                self.control_file.reset({"log_every": log_every}, self._clock.wall_s())
                self._has_control_file = True

    def check(self) -> None:
        """Check that the files are in place and intact, and repair them."""
        if not self._appender.is_in_place():
            self._restore()
        elif self._appender.is_cut():
            reason = "the journal was truncated while the run was recorded"
            self._report_error("journal_cut", "metrics.jsonl", reason=reason)
            if self._mirror is not None:
                self._mirror.start_over()
        elif not self.folder.lock.exists():  # .tacho may be deleted at any time
            with suppress(OSError):
                make_folder(self.folder.private, below=self.folder.path)
                self._claim.renew()
                self.beat()
                self.on_restore()

    def _restore(self) -> None:
        try:
            self.folder.path.mkdir(parents=True, exist_ok=True)
            make_folder(self.folder.private, below=self.folder.path)
            if not self._claim.renew():
                self._move_to_new_folder()
                return
            is_recovered = self._appender.restore()
        except faults(OSError) as error:  # retried at the next check; until then records go to the deleted file
            if not self.is_lost:
                self.is_lost = True
                reason = f"the journal was deleted and cannot be restored: {error}"
                self._report_error("journal_moved", "metrics.jsonl", reason=reason)
            return
        self.is_lost = False
        self._has_control_file = self.folder.control.exists()
        if self._mirror is not None:
            self._mirror.close_after_error()
            if not is_recovered:
                self._mirror.start_over()
        reason = "the journal was deleted or replaced while the run was recorded"
        reason += "; its records were restored" if is_recovered else "; the new file is continued"
        self._report_error("journal_moved", "metrics.jsonl", reason=reason)
        self.on_restore()

    def _move_to_new_folder(self) -> None:
        """Continue in another folder, because another process started a run in ours after it was deleted."""
        name = self.folder.name
        self._claim = claim_run_folder(str(self.folder.path.parent), name, resume=False)
        self._appender.restore(self.folder.journal)
        self._mirror = (
            CsvMirror(self.folder, yield_to_writer=self._yield_to_writer) if self._mirror is not None else None
        )
        self.control_file = ControlFile(self.folder)
        self._has_control_file = False
        reason = f"{name!r} was deleted and another process reused the name; this run continues as {self.folder.name!r}"
        self._report_error("journal_moved", "metrics.jsonl", reason=reason)
        self.beat()
        self.on_move(self.folder, reason)
