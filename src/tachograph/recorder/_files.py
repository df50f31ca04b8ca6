"""The files of a run while it is recorded: appended to, mirrored, and kept in their place whatever happens to it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import msgspec

from tachograph._base import ranks
from tachograph._base.clock import Clock
from tachograph.journal import (
    Appender,
    Claim,
    ControlFile,
    CsvMirror,
    Heartbeat,
    RunFolder,
    atomic_write,
    claim_run_folder,
    this_process,
    uptime_s,
)
from tachograph.records import StepTable

__all__ = ["Files", "RunFiles"]


class Tell(Protocol):
    """Records a fault of telemetry itself."""

    def __call__(self, kind: str, field: str, **more: Any) -> None:
        """Tell what kind of fault it was, of what, and more about it."""
        ...


class Files(Protocol):
    """What a writer writes to."""

    control_file: ControlFile
    is_lost: bool
    """Whether the journal was deleted and cannot be put back."""

    @property
    def folder(self) -> RunFolder:
        """Where the run is recorded now."""
        ...

    @property
    def has_pending(self) -> bool:
        """Whether something could not be written yet."""
        ...

    def append(self, data: bytes, pieces: Sequence[StepTable | dict[str, Any]]) -> int:
        """Append lines; return how many had to be dropped."""
        ...

    def catch_up(self, *, budget_s: float, force: bool = False) -> None:
        """Let a mirror have what it missed, for so long."""
        ...

    def check(self) -> None:
        """See whether the files are still where and what they were, and mend it."""
        ...

    def beat(self, *, num_waiting: int = 0, num_dropped: int = 0, num_alerts: tuple[int, int] = (0, 0)) -> None:
        """Give a sign of life."""
        ...

    def ensure_control_file(self, log_every: int) -> None:
        """Make the control file, unless that was done."""
        ...

    def close(self) -> None:
        """Put everything on the disk."""
        ...

    def release(self) -> None:
        """Let others claim the folder."""
        ...

    def abandon(self) -> None:
        """In a forked child: the files are the parent's."""
        ...


class RunFiles:
    """The claimed folder with its journal, mirror, heartbeat and control file. Used by the writer's thread alone."""

    def __init__(
        self, claim: Claim, run_id: str, clock: Clock, *, csv: bool, tell: Tell, breathe: Callable[[], None]
    ) -> None:
        self._claim = claim
        self._run_id = run_id
        self._clock = clock
        self._tell = tell
        self._breathe_out = breathe
        self._process = this_process()
        self._mirror = CsvMirror(claim.folder, breathe=self._breathe) if csv else None
        if self._mirror is not None:
            self._mirror.load()  # before the journal grows: its cursor speaks of the journal as the last writer left it
        self._appender = Appender(claim.folder.journal)
        self._start_bytes = self._appender.size_bytes
        self._mirror_fault = ""
        self._write_fault_s: float | None = None
        self._is_breathing = False
        self.is_lost = False
        self._has_control_file = False
        self.control_file = ControlFile(claim.folder)
        self.on_move: Callable[[RunFolder, str], None] = lambda folder, reason: None

    @property
    def folder(self) -> RunFolder:
        """Where the run is recorded now."""
        return self._claim.folder

    @property
    def has_pending(self) -> bool:
        """Whether something could not be written yet."""
        return bool(self._appender.pending)

    # Writing -------------------------------------------------------------------------------------------------------

    def append(self, data: bytes, pieces: Sequence[StepTable | dict[str, Any]]) -> int:
        """Append lines to the journal and what they say to its mirror; return how many lines had to be dropped."""
        if not data and not self.has_pending:
            return 0
        follows_on = not self.has_pending
        start = self._appender.size_bytes
        fault = self._appender.append(data)
        num_dropped, self._appender.num_dropped_lines = self._appender.num_dropped_lines, 0
        if fault is not None:
            if self._write_fault_s is None:
                self._write_fault_s = self._clock.steady_s()
                self._tell("write_failed", "metrics.jsonl", reason=str(fault))
            return num_dropped
        if self._write_fault_s is not None:
            self._tell("write_recovered", "metrics.jsonl", after_s=self._clock.steady_s() - self._write_fault_s)
            self._write_fault_s = None
        if self._mirror is not None and follows_on and not self._is_breathing:
            with self._mirroring(self._mirror):
                self._mirror.add(pieces, start, self._appender.size_bytes)
        return num_dropped

    def catch_up(self, *, budget_s: float, force: bool = False) -> None:
        """Let the mirror have what it missed, for so long."""
        if self._mirror is not None and not self.has_pending:
            with self._mirroring(self._mirror):
                self._mirror.catch_up(self._appender.size_bytes, budget_s=budget_s, force=force)
                self._mirror_fault = ""

    def close(self) -> None:
        """Put everything on the disk and let the folder go."""
        if self._mirror is not None:
            self._mirror.close()
        self._appender.sync()
        self._appender.close()

    def release(self) -> None:
        """Let others claim the folder."""
        self._claim.release()

    def abandon(self) -> None:
        """In a forked child: the files are the parent's."""
        self._appender.close()

    def _breathe(self) -> None:
        """Let the journal be written while the mirror is at a long task; the mirror itself catches up afterwards."""
        if not self._is_breathing:
            self._is_breathing = True
            try:
                self._breathe_out()
            finally:
                self._is_breathing = False

    @contextlib.contextmanager
    def _mirroring(self, mirror: CsvMirror) -> Iterator[None]:
        """Keep the mirror's faults from the journal. A full disk passes; anything else would come again and again."""
        try:
            yield
        except FileNotFoundError:
            mirror.lost()  # the whole folder is gone, which the next check will find and tell
        except OSError as error:
            mirror.lost()
            if str(error) != self._mirror_fault:
                self._mirror_fault = str(error)
                self._tell("csv_behind", "metrics.csv", reason=f"{error}; it will catch up")
        except Exception as error:
            self._mirror = None
            self._tell("csv_stopped", "metrics.csv", reason=f"{type(error).__name__}: {error}")
            raise

    # Looking after -------------------------------------------------------------------------------------------------

    def beat(self, *, num_waiting: int = 0, num_dropped: int = 0, num_alerts: tuple[int, int] = (0, 0)) -> None:
        """Give a sign of life."""
        heartbeat = Heartbeat(
            run_id=self._run_id,
            process=self._process,
            time=self._clock.wall_s(),
            uptime_s=uptime_s(),
            journal_bytes=self._appender.size_bytes,
            start_bytes=self._start_bytes,
            num_waiting=num_waiting,
            num_dropped=num_dropped,
            num_open_alerts=num_alerts[0],
            num_critical_alerts=num_alerts[1],
            job=ranks.job_id(),  # a framework may set the process group up after the run has begun
        )
        with contextlib.suppress(OSError):  # a full disk; readers still have the pid
            atomic_write(self.folder.heartbeat, msgspec.json.encode(heartbeat))

    def ensure_control_file(self, log_every: int) -> None:
        """Make `control.json` with the values in force, unless that was done."""
        if not self._has_control_file:
            with contextlib.suppress(OSError):  # a full disk: tried again, and requests are read all the same
                self.control_file.reset({"log_every": log_every}, self._clock.wall_s())
                self._has_control_file = True

    def check(self) -> None:
        """See whether the files are still where and what they were, and mend it."""
        if not self._appender.is_in_place():
            self._put_back()
        elif self._appender.is_cut():
            reason = "the journal was made shorter while the run was being recorded"
            self._tell("journal_cut", "metrics.jsonl", reason=reason)
            if self._mirror is not None:
                self._mirror.start_over()
        elif not self.folder.lock.exists():  # .tacho may be deleted at any time
            with contextlib.suppress(OSError):
                self.folder.private.mkdir(exist_ok=True)
                self._claim.renew()
                self.beat()

    def _put_back(self) -> None:
        try:
            self.folder.private.mkdir(parents=True, exist_ok=True)
            if not self._claim.renew():
                self._move_out()
                return
            saved = self._appender.restore()
        except OSError as error:  # tried again at the next check; until then records go to the deleted file
            if not self.is_lost:
                self.is_lost = True
                reason = f"the journal was deleted and cannot be put back: {error}"
                self._tell("journal_moved", "metrics.jsonl", reason=reason)
            return
        self.is_lost = False
        self._has_control_file = self.folder.control.exists()
        if self._mirror is not None:
            self._mirror.lost()
            if not saved:
                self._mirror.start_over()
        reason = "the journal was deleted or replaced while the run was being recorded"
        reason += "; its records were put back" if saved else "; the file in its place is continued"
        self._tell("journal_moved", "metrics.jsonl", reason=reason)

    def _move_out(self) -> None:
        """Another process has made a run in our place since the folder was deleted: take our records elsewhere."""
        name = self.folder.name
        self._claim = claim_run_folder(str(self.folder.path.parent), name, resume=False)
        self._appender.restore(self.folder.journal)
        self._mirror = CsvMirror(self.folder, breathe=self._breathe) if self._mirror is not None else None
        self.control_file = ControlFile(self.folder)
        self._has_control_file = False
        reason = f"{name!r} was deleted and taken by another process; this run goes on as {self.folder.name!r}"
        self._tell("journal_moved", "metrics.jsonl", reason=reason)
        self.beat()
        self.on_move(self.folder, reason)
