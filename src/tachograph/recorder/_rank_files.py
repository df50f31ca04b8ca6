"""What a rank other than the first writes: one file inside the folder of the run that rank 0 records.

Rank 0 alone knows which folder it was given, so the others look for the run that says it is of their job. Nobody waits
for that: until it is found, and if it never is, lines are kept in memory, a bounded number of them.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from tachograph._base import ranks
from tachograph._base.clock import Clock
from tachograph.journal import (
    Appender,
    ControlFile,
    Heartbeat,
    RunFolder,
    atomic_write,
    find_job,
    this_process,
    uptime_s,
)

__all__ = ["RankFiles"]

_MOST_PENDING_BYTES = 1 << 20
_LONGEST_PAUSE_S = 30.0
_MADE_UP = re.compile(r"run-\d{8}_\d{6}")
"""A name that was made of the time, which differs from rank to rank."""


class RankFiles:
    """The journal of one rank. Used by the writer's thread alone."""

    def __init__(self, log_dir: str, name: str, rank: int, clock: Clock) -> None:
        self._log_dir = os.path.abspath(log_dir)  # the training code may change its folder
        self._name = None if _MADE_UP.fullmatch(name) else name
        self._rank = rank
        self._clock = clock
        self._process = this_process()
        self._began_s = clock.wall_s()
        self._born_s = self._look_at_s = clock.steady_s()
        self._found: RunFolder | None = None
        self._appender: Appender | None = None
        self._early = bytearray()
        self.is_lost = False
        self.control_file = ControlFile(self.folder)

    @property
    def folder(self) -> RunFolder:
        """Where rank 0 records, once that is known."""
        return self._found or RunFolder(Path(self._log_dir))

    @property
    def has_pending(self) -> bool:
        """Whether there is something that can be written and was not; what has no place to go does not count."""
        return self._appender is not None and bool(self._appender.pending)

    def append(self, data: bytes, pieces: Sequence[Any]) -> int:
        """Append lines, or keep them until there is a place; return how many had to be dropped."""
        if self._appender is None:
            room = _MOST_PENDING_BYTES - len(self._early)
            cut = len(data) if len(data) <= room else data.rfind(b"\n", 0, max(room, 0)) + 1
            self._early += data[:cut]
            return data.count(b"\n", cut)
        if data or self._appender.pending:
            self._appender.append(data)
        num_dropped, self._appender.num_dropped_lines = self._appender.num_dropped_lines, 0
        return num_dropped

    def check(self) -> None:
        """Look for the run, or see whether the file is still in its place."""
        if self._appender is None:
            now_s = self._clock.steady_s()
            if now_s >= self._look_at_s:
                self._look_at_s = now_s + min(0.1 * (now_s - self._born_s), _LONGEST_PAUSE_S)
                self._look()
        elif not self._appender.is_in_place():
            with contextlib.suppress(OSError):  # the whole folder is gone; rank 0 puts it back, and we look again
                self._appender.restore()

    def _look(self) -> None:
        self._found = find_job(self._log_dir, ranks.job_id(), self._began_s, self._name)
        if self._found is not None:
            self._open(self._found)

    def _open(self, folder: RunFolder) -> None:
        path = folder.rank_journal(self._rank)
        try:
            path.parent.mkdir(exist_ok=True)
            self._appender = Appender(path, _MOST_PENDING_BYTES)
        except OSError:  # tried again at the next check
            return
        early, self._early = bytes(self._early), bytearray()
        self._appender.append(early)
        self.beat()

    def beat(self, *, num_waiting: int = 0, num_dropped: int = 0, num_alerts: tuple[int, int] = (0, 0)) -> None:
        """Give a sign of life."""
        if self._found is None or self._appender is None:
            return
        heartbeat = Heartbeat(
            run_id="",
            process=self._process,
            time=self._clock.wall_s(),
            uptime_s=uptime_s(),
            journal_bytes=self._appender.size_bytes,
            num_waiting=num_waiting,
            num_dropped=num_dropped,
            job=ranks.job_id(),
        )
        path = self._found.rank_heartbeat(self._rank)
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            atomic_write(path, msgspec.json.encode(heartbeat))

    def catch_up(self, *, budget_s: float, force: bool = False) -> None:
        """Do nothing: there is no mirror."""

    def ensure_control_file(self, log_every: int) -> None:
        """Do nothing: rank 0 is steered, and tells the others."""

    def close(self) -> None:
        """Put everything on the disk."""
        if self._appender is None and self._early:
            self._look()
            self.is_lost = self._appender is None
        if self._appender is not None:
            self._appender.sync()
            self._appender.close()

    def release(self) -> None:
        """Do nothing: nothing was claimed."""

    def abandon(self) -> None:
        """In a forked child: the file is the parent's."""
        if self._appender is not None:
            self._appender.close()
