"""The files of a rank other than 0: one journal inside the folder of the run that rank 0 records.

Only rank 0 knows the name of the folder, so the other ranks search for a run whose heartbeat names their job, at
growing intervals. They never wait for it while the run is recorded: until the folder is found, lines are kept in
memory, up to a limit. At the end the writer waits for it, within the time for the exit: a rank that fails early may be
done before rank 0 has created its folder. If it never appears, the rank leaves its journal in a run folder of its own.

Where the machines of a job share no disk, the folder never appears. If the run is sent to a server, the ranks of a
machine without rank 0 then write into a folder of their own, which is sent to the run of the job; see
`journal._node_folder`.

In a large job the ranks of a host share a file, which local rank 0 writes; see `_host_files`. A rank that cannot reach
it in time, or no longer, has a file of its own.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tachograph._base import ranks
from tachograph._base.clock import Clock
from tachograph._base.guard import faults, suppress
from tachograph.exceptions import TachographError
from tachograph.journal import (
    Appender,
    ControlFile,
    Heartbeat,
    NodeFacts,
    RunFolder,
    claim_run_folder,
    find_job,
    node_file_number,
    open_node_folder,
    this_process,
    uptime_s,
)
from tachograph.recorder._files import WriterState
from tachograph.recorder._host_files import (
    HostChannel,
    HostFile,
    HostLostError,
    OwnFile,
    RankOutlet,
    has_host_files,
)
from tachograph.records import RANK_MESH, encode

__all__ = ["RankFiles"]

_MAX_PENDING_BYTES = 1 << 20
_MAX_PAUSE_S = 30.0
NODE_WAIT_S = 10.0
"""How long a rank searches for the folder of rank 0 before it uses a folder of its machine."""
_HOST_WAIT_S = 15.0
"""How long a rank waits for the socket of its host, besides the time that the search for the folder may differ."""
_GENERATED_NAME = re.compile(r"run-\d{8}_\d{6}")
"""A generated run name contains the time, which differs between ranks."""


class RankFiles:
    """The journal of one rank. Used only by the writer thread.

    Args:
        log_dir: the folder of the runs.
        name: the requested name of the run.
        rank: the rank of this process.
        clock: the clock.
        is_sent: whether the run is sent to a server, which also accepts the ranks of machines without rank 0.
    """

    def __init__(self, log_dir: str, name: str, rank: int, clock: Clock, *, is_sent: bool = False) -> None:
        self._log_dir = os.path.abspath(log_dir)  # the training code may change its working directory
        self._name = None if _GENERATED_NAME.fullmatch(name) else name
        self._rank = rank
        self._clock = clock
        self._process = this_process()
        self._job = ranks.job_id()  # now: the training code may destroy the process group before the last search
        self._world_size = ranks.world_size()
        self._local_rank = ranks.local_rank()
        self._started_at = clock.wall_s()
        self._created_at = self._next_search_at = clock.steady_s()
        self._run_folder: RunFolder | None = None
        self._may_use_node_folder = is_sent and bool(self._job) and not ranks.is_beside_rank_0()
        self.node_folder: RunFolder | None = None
        """The folder of this machine's ranks, if they write into one."""
        self._has_host_file = self._local_rank is not None and has_host_files(self._world_size)
        self._host_wait_until = 0.0
        self._outlet: RankOutlet | None = None
        self._unwritten = bytearray()
        self._first_lines = b""
        """The lines that describe the rank, which a file of its own has to begin with."""
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
        return self._outlet is not None and bool(self._outlet.pending)

    @property
    def num_pending_lines(self) -> int:
        """The number of lines that could not be written yet; lines that wait for the folder do not count."""
        return 0 if self._outlet is None else self._outlet.pending.count(b"\n")

    @property
    def is_waiting(self) -> bool:
        """Whether lines wait for the folder of rank 0."""
        return self._outlet is None and bool(self._unwritten)

    @property
    def can_append(self) -> bool:
        """Whether lines reach the file when they are appended, and do not wait in memory."""
        return self._outlet is not None and not self._outlet.pending

    def append(self, data: bytes, records: Sequence[Any]) -> int:
        """Append lines, or keep them until the folder is known; return how many were dropped."""
        if self._has_host_file:
            self._note_first_lines(records)
        if self._outlet is None:
            room = _MAX_PENDING_BYTES - len(self._unwritten)
            end = len(data) if len(data) <= room else data.rfind(b"\n", 0, max(room, 0)) + 1
            self._unwritten += data[:end]
            return data.count(b"\n", end)
        try:
            return self._outlet.append(data)
        except HostLostError:
            return self._leave_host()

    def check(self) -> None:
        """Search for the run, or check that the file is still in place."""
        if self._outlet is not None:
            try:
                self._outlet.check()
            except HostLostError:
                self._leave_host()
            return
        now_s = self._clock.steady_s()
        if self._run_folder is None and now_s >= self._next_search_at:
            self._next_search_at = now_s + self._search_pause_s(now_s)
            self._search()
            if self._run_folder is None and now_s - self._created_at >= NODE_WAIT_S:
                self._open_node_folder()
        elif self._run_folder is not None:
            self._open(self._run_folder)

    def _search_pause_s(self, now_s: float) -> float:
        return min(0.1 * (now_s - self._created_at), _MAX_PAUSE_S)

    def _search(self) -> None:
        self._run_folder = find_job(self._log_dir, self._job, self._started_at, self._name)
        if self._run_folder is not None:
            now_s = self._clock.steady_s()
            self._host_wait_until = now_s + _HOST_WAIT_S + self._search_pause_s(now_s)
            self._open(self._run_folder)

    def _open_node_folder(self) -> None:
        if not self._may_use_node_folder:
            return
        with suppress(OSError):
            facts = NodeFacts(self._job, self._name or "", self._started_at)
            self._run_folder = self.node_folder = open_node_folder(self._log_dir, facts)
            now_s = self._clock.steady_s()
            self._host_wait_until = now_s + _HOST_WAIT_S + self._search_pause_s(now_s)
            self._open(self._run_folder)

    def _open(self, folder: RunFolder) -> None:
        """Open the file of the rank or of its host; if that fails, the next check retries."""
        with suppress(OSError):
            self._outlet = self._connect(folder)
        if self._outlet is not None:
            self.beat()
            self.append(self._take_unwritten(), [])

    def _connect(self, folder: RunFolder) -> RankOutlet:
        if self._has_host_file and self._local_rank == 0:
            return HostFile(folder, self._rank, self._job, self._world_size, self._file_number)
        if self._has_host_file:
            try:
                return HostChannel(folder, self._rank, self._job)
            except faults(OSError):
                if self._clock.steady_s() < self._host_wait_until:
                    raise
                self._has_host_file = False
        return OwnFile(folder, self._rank, _MAX_PENDING_BYTES, self._file_number)

    @property
    def _file_number(self) -> int | None:
        return None if self.node_folder is None else node_file_number(self._job, self._process, self._rank)

    def _take_unwritten(self) -> bytes:
        unwritten, self._unwritten = bytes(self._unwritten), bytearray()
        return unwritten

    def _note_first_lines(self, records: Sequence[Any]) -> None:
        for record in records:
            if isinstance(record, dict) and record["event"] == "start":
                self._first_lines = encode(record) + b"\n"
            elif isinstance(record, dict) and record.get("name") == RANK_MESH:
                self._first_lines = self._first_lines.partition(b"\n")[0] + b"\n" + encode(record) + b"\n"

    def _leave_host(self) -> int:
        """Continue with a file of its own, because local rank 0 accepts nothing; return how many lines were dropped."""
        channel, self._outlet = self._outlet, None
        self._has_host_file = False
        if isinstance(channel, HostChannel):
            unsent = channel.unsent_lines
            channel.abandon()
            self._unwritten += unsent if b'{"event":"start"' in unsent else self._first_lines + unsent
        if self._run_folder is not None:
            self._open(self._run_folder)
        return 0

    def _open_own_folder(self) -> None:
        """Leave the journal in a run folder of its own, because the folder of rank 0 did not appear."""
        name = f"{self._name or time.strftime('run-%Y%m%d_%H%M%S')}-rank-{self._rank}"
        with suppress(OSError, TachographError):
            claim = claim_run_folder(self._log_dir, name, resume=False)
            try:
                appender = Appender(claim.folder.journal, _MAX_PENDING_BYTES, below=claim.folder.path)
                appender.append(self._take_unwritten())
                self.is_lost = bool(appender.pending)
                appender.sync()
                appender.close()
            finally:
                claim.release()

    def beat(self, state: WriterState | None = None) -> None:
        """Write the heartbeat; without a state, with the last one."""
        self._state = state or self._state
        if self._run_folder is None or self._outlet is None:
            return
        heartbeat = Heartbeat(
            run_id="",
            process=self._process,
            time=self._clock.wall_s(),
            uptime_s=uptime_s(),
            journal_bytes=self._outlet.num_bytes,
            **self._state._asdict(),
            job=self._job,
        )
        try:
            self._outlet.beat(heartbeat)
        except HostLostError:
            self._leave_host()

    def catch_up(self, *, budget_s: float, force: bool = False) -> None:
        """Do nothing: a rank has no CSV mirror."""

    def ensure_control_file(self, log_every: int) -> None:
        """Do nothing: rank 0 receives the requests."""

    def close(self) -> None:
        """Sync everything to disk."""
        if self.is_waiting and self._run_folder is None:
            self._search()
        if self.is_waiting and self._run_folder is None:
            self._has_host_file = False
            self._open_node_folder()
        if self.is_waiting and self._run_folder is not None:
            self._has_host_file = False  # nothing else may be left to wait for
            self._open(self._run_folder)
        if self.is_waiting:
            self._open_own_folder()
            self.is_lost = self.is_lost or bool(self._unwritten)
        if isinstance(self._outlet, HostChannel) and self._outlet.pending:
            self._leave_host()
        if self._outlet is not None:
            self._outlet.close()

    def release(self) -> None:
        """Do nothing: a rank claims no folder."""

    def abandon(self) -> None:
        """In a forked child: leave the file to the parent."""
        if self._outlet is not None:
            self._outlet.abandon()
