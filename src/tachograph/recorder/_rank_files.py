"""The files of a rank other than 0: one journal inside the folder of the run that rank 0 records.

Only rank 0 knows the name of the folder, so the other ranks search for a run whose heartbeat names their job, at
growing intervals. They never wait for it while the run is recorded: until the folder is found, lines are kept in
memory, up to a limit. At the end the writer waits for it, within the time for the exit: a rank that fails early may be
done before rank 0 has created its folder. If it never appears, the rank leaves its journal in a run folder of its own.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from tachograph._base import ranks
from tachograph._base.clock import Clock
from tachograph._base.files import make_folder, replace_file
from tachograph._base.guard import faults, suppress
from tachograph.exceptions import TachographError
from tachograph.journal import (
    Appender,
    ControlFile,
    Heartbeat,
    RunFolder,
    claim_run_folder,
    find_job,
    restore_journal,
    this_process,
    uptime_s,
)
from tachograph.recorder._files import WriterState

__all__ = ["RankFiles"]

_MAX_PENDING_BYTES = 1 << 20
_MAX_PAUSE_S = 30.0
_GENERATED_NAME = re.compile(r"run-\d{8}_\d{6}")
"""A generated run name contains the time, which differs between ranks."""


class RankFiles:
    """The journal of one rank. Used only by the writer thread."""

    def __init__(self, log_dir: str, name: str, rank: int, clock: Clock) -> None:
        self._log_dir = os.path.abspath(log_dir)  # the training code may change its working directory
        self._name = None if _GENERATED_NAME.fullmatch(name) else name
        self._rank = rank
        self._clock = clock
        self._process = this_process()
        self._job = ranks.job_id()  # now: the training code may destroy the process group before the last search
        self._started_at = clock.wall_s()
        self._created_at = self._next_search_at = clock.steady_s()
        self._run_folder: RunFolder | None = None
        self._appender: Appender | None = None
        self._unwritten = bytearray()
        self._state = WriterState()
        self.is_lost = False
        self.control_file = ControlFile(self.folder)

    @property
    def folder(self) -> RunFolder:
        """The folder of rank 0, once it is known."""
        return self._run_folder or RunFolder(Path(self._log_dir))

    @property
    def has_pending(self) -> bool:
        """Whether lines could not be written yet; lines that wait for the folder do not count."""
        return self._appender is not None and bool(self._appender.pending)

    @property
    def num_pending_lines(self) -> int:
        """The number of lines that could not be written yet; lines that wait for the folder do not count."""
        return 0 if self._appender is None else self._appender.pending.count(b"\n")

    @property
    def is_waiting(self) -> bool:
        """Whether lines wait for the folder of rank 0."""
        return self._appender is None and bool(self._unwritten)

    @property
    def can_append(self) -> bool:
        """Whether lines reach the file when they are appended, and do not wait in memory."""
        return self._appender is not None and not self._appender.pending

    def append(self, data: bytes, records: Sequence[Any]) -> int:
        """Append lines, or keep them until the folder is known; return how many were dropped."""
        if self._appender is None:
            room = _MAX_PENDING_BYTES - len(self._unwritten)
            end = len(data) if len(data) <= room else data.rfind(b"\n", 0, max(room, 0)) + 1
            self._unwritten += data[:end]
            return data.count(b"\n", end)
        if data or self._appender.pending:
            self._appender.append(data)
        num_dropped, self._appender.num_dropped_lines = self._appender.num_dropped_lines, 0
        return num_dropped

    def check(self) -> None:
        """Search for the run, or check that the file is still in place."""
        if self._appender is None:
            now_s = self._clock.steady_s()
            if now_s >= self._next_search_at:
                self._next_search_at = now_s + min(0.1 * (now_s - self._created_at), _MAX_PAUSE_S)
                self._search()
        elif not self._appender.is_in_place():
            with suppress(OSError):  # if the whole run folder is gone, rank 0 restores it, and the next check retries
                if self._run_folder is not None:
                    make_folder(self._run_folder.ranks, below=self._run_folder.path)
                self._appender.restore()

    def _search(self) -> None:
        self._run_folder = find_job(self._log_dir, self._job, self._started_at, self._name)
        if self._run_folder is not None:
            self._open(self._run_folder)

    def _open(self, folder: RunFolder) -> None:
        path = folder.rank_journal(self._rank)
        try:
            make_folder(path.parent, below=folder.path)
            restore_journal(path, below=folder.path)  # if it is compressed: it is continued now
            self._appender = Appender(path, _MAX_PENDING_BYTES, below=folder.path)
        except faults(OSError):  # retried at the next check
            return
        unwritten, self._unwritten = bytes(self._unwritten), bytearray()
        self._appender.append(unwritten)
        self.beat()

    def _open_own_folder(self) -> None:
        """Leave the journal in a run folder of its own, because the folder of rank 0 did not appear."""
        name = f"{self._name or time.strftime('run-%Y%m%d_%H%M%S')}-rank-{self._rank}"
        with suppress(OSError, TachographError):
            claim = claim_run_folder(self._log_dir, name, resume=False)
            try:
                self._appender = Appender(claim.folder.journal, _MAX_PENDING_BYTES, below=claim.folder.path)
                self._appender.append(bytes(self._unwritten))
                self._unwritten.clear()
            finally:
                claim.release()

    def beat(self, state: WriterState | None = None) -> None:
        """Write the heartbeat; without a state, with the last one."""
        self._state = state or self._state
        if self._run_folder is None or self._appender is None:
            return
        heartbeat = Heartbeat(
            run_id="",
            process=self._process,
            time=self._clock.wall_s(),
            uptime_s=uptime_s(),
            journal_bytes=self._appender.size_bytes,
            **self._state._asdict(),
            job=self._job,
        )
        path = self._run_folder.rank_heartbeat(self._rank)
        with suppress(OSError):
            make_folder(path.parent, below=self._run_folder.path)
            replace_file(path, msgspec.json.encode(heartbeat), below=self._run_folder.path)

    def catch_up(self, *, budget_s: float, force: bool = False) -> None:
        """Do nothing: a rank has no CSV mirror."""

    def ensure_control_file(self, log_every: int) -> None:
        """Do nothing: rank 0 receives the requests."""

    def close(self) -> None:
        """Sync everything to disk."""
        if self.is_waiting:
            self._search()
        if self.is_waiting:
            self._open_own_folder()
            self.is_lost = self._appender is None
        if self._appender is not None:
            self._appender.sync()
            self._appender.close()

    def release(self) -> None:
        """Do nothing: a rank claims no folder."""

    def abandon(self) -> None:
        """In a forked child: leave the file to the parent."""
        if self._appender is not None:
            self._appender.close()
