"""The server's copies of runs: each journal is byte for byte the trainer's file.

A copy has no other state. The number of bytes that it *has* is the length of the file up to its last newline, so a
repeated batch, a second client or a reinstalled one all agree with it. A server that is killed in the middle of a write
leaves a line without its end, which is cut off when the file is opened again; the client sends those bytes again.

The folder of a copy is made by the server from the name and the project that the client sent: ``DIR/<project>/<name>``,
with a number if that name is in use. `DIR/.server/runs/<id>.json` says which folder a run id has and which key
registered it. Only keys of the same family (see `_keys`) may append.

Several processes, also on several hosts, may serve one folder. Each of them may append to any copy, one batch at a time
(see `_append_lock`), so a client may send each request to another one, and nothing has to be taken over from a process
that was killed. A process that has a copy open shares the lock of the run folder with the others, and releases it when
the copy was not used for a while, or when another process asks for it (see `_server_group`). So no recorder writes to
a copy, and nothing compresses, thins or moves it meanwhile.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from tachograph._base.files import (
    exclusive_lock,
    make_folder,
    move_folder,
    open_folder,
    open_to_update,
    read_small,
    replace_file,
)
from tachograph._base.typed import decode_json
from tachograph.journal import (
    FIRST_NODE_NUMBER,
    LAST_NODE_NUMBER,
    REMOTE_NAMESPACE,
    Heartbeat,
    RunFolder,
    RunState,
    complete_size,
    current_state,
    journal_size,
    list_rank_journals,
    lock_run_folder,
    read_rank_map,
    restore_journal,
    uptime_s,
    write_rank_map,
)
from tachograph.records import RankMap, suggest_run_name
from tachograph.remote import (
    BEFORE_BYTES,
    MAX_BEAT_BYTES,
    MAX_RANK,
    RUN_FILES,
    RUN_ID,
    Beat,
    Join,
    Registration,
    RelayedHeartbeat,
    hash_bytes,
    run_files,
)
from tachograph.server._copy_status import CopyStatus, copy_status_path, read_copy_status
from tachograph.server.team._append_lock import AppendLock, AppendLockLostError, AppendLockTimeoutError
from tachograph.server.team._key_usage import KeyUsage

__all__ = [
    "CopyBusyError",
    "CopyEntry",
    "CopyError",
    "CopyGoneError",
    "AmbiguousJobError",
    "DivergedError",
    "InvalidBatchError",
    "NotYourRunError",
    "OutOfOrderError",
    "RunCopies",
    "RunCopy",
    "StorageFullError",
    "UnknownRunError",
    "check_journal",
    "project_folder",
]

DEFAULT_PROJECT = "default"
_PRIVATE = ".server"
_MAX_ENTRY_BYTES = 64 << 10
_MAX_OPEN_COPIES = 1024
_MAX_FILES = 4096
_MAX_OPEN_JOURNALS = 8
"""Of one copy: a run may have thousands of ranks, and a process only so many open files."""
_SEARCH_INTERVAL_S = 60.0
_IDLE_S = 60.0
"""A copy that was not used for so long is closed, so that its files may be compressed."""
_RUN_ID = re.compile(RUN_ID)
_RELAY_BYTES = 1 << 20
_RELAY_RANKS = 2_000
"""In one answer."""
_MAX_JOB_RUNS = 20
_NUM_SKEWS = 20
_DISK_FULL_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class CopyError(Exception):
    """A batch or a registration cannot be accepted; the text is for the client."""


class InvalidBatchError(CopyError):
    """The batch is not made of whole lines, or a value is out of range."""


class UnknownRunError(CopyError):
    """The run is not registered."""


class NotYourRunError(CopyError):
    """Another key registered the run."""


class CopyGoneError(CopyError):
    """The copy was deleted on the server."""


class CopyBusyError(CopyError):
    """Another process appends to the copy, or has locked it."""


class OutOfOrderError(CopyError):
    """The batch begins after the end of the copy, which is `have`."""

    def __init__(self, have: int) -> None:
        super().__init__(f"the copy has {have} bytes: continue there")
        self.have = have


class AmbiguousJobError(CopyError):
    """Several runs belong to the job."""


class DivergedError(CopyError):
    """The batch, or the bytes before it, differ from the copy."""


class StorageFullError(CopyError):
    """The disk of the server is full."""


class CopyEntry(msgspec.Struct):
    """Where the copy of a run is, and who registered it."""

    run_id: str
    folder: str
    """Relative to the folder of the server."""
    inode: int
    owner: str
    """The family of the key."""
    run_name: str
    registered: float
    remote_control: bool = False
    job: str = ""
    """The id of the distributed job that the run belongs to, by which other machines join it."""


class _OpenJournal:
    """The file of one rank, open to append."""

    def __init__(self, path: Path, below: Path) -> None:
        restore_journal(path, below=below)
        self.fd = open_to_update(path, below=below)  # at an offset: see `AppendLock`
        try:
            self.have = _cut_incomplete_line(self.fd)
        except BaseException:
            os.close(self.fd)
            raise


class _NodeBeat(NamedTuple):
    """The heartbeats of the ranks of one machine, as they were stored."""

    version: tuple[int, int]
    """Inode and time of their file."""
    heartbeats: dict[str, Heartbeat]


class RunCopy:
    """The copy of one run, with its journals open."""

    def __init__(
        self,
        folder: RunFolder,
        entry: CopyEntry,
        *,
        is_durable: bool,
        on_stored: Callable[[str, int], None],
        read_entry: Callable[[str], CopyEntry | None],
    ) -> None:
        self.folder = folder
        self.entry = entry
        self._read_entry = read_entry
        self.used_s = time.monotonic()
        self._is_durable = is_durable
        self._on_stored = on_stored
        self._mutex = threading.Lock()
        self._journals: OrderedDict[str, _OpenJournal] = OrderedDict()
        self._skews: list[float] = []
        self._node_beats: dict[str, _NodeBeat] = {}
        """The last beats of machines without rank 0, by the name of the file."""
        self._next_relayed = 0
        self._lock = contextlib.ExitStack()
        # As long as it is open, no other folder gets its inode.
        self._lock.callback(os.close, open_folder(folder.path))
        try:
            if not self._lock.enter_context(lock_run_folder(folder, is_shared=True)):
                raise CopyBusyError("another process compresses or moves the copy: try again")
            self._append_lock = AppendLock(folder)
            self._lock.callback(self._append_lock.close)
        except BaseException:
            self._lock.close()
            raise
        self._is_open = True

    @property
    def is_in_place(self) -> bool:
        """Whether the folder was neither deleted nor moved."""
        return _inode(self.folder.path) == self.entry.inode

    def have(self) -> dict[str, int]:
        """Return the number of bytes of each journal, by its key."""
        keys = ["0"] if self.folder.exists() else []
        journals = [journal for journal in list_rank_journals(self.folder) if journal.number or journal.is_host]
        keys += [journal.key for journal in journals if journal.number <= MAX_RANK or journal.is_host]
        with self._exclusive():
            return {key: self._journal(key).have for key in keys}

    def append(self, key: str, offset: int, data: bytes, before: str) -> int:
        """Append a batch and return how many bytes the copy has now.

        Args:
            key: whose journal: a rank or, such as `host-12`, a host; see `check_journal`.
            offset: where the batch begins in the trainer's file.
            data: whole lines.
            before: the hash of the (at most 4 KiB) bytes before the offset.

        Raises:
            CopyError: if the batch cannot be accepted; the copy is unchanged.
            OSError: if the file cannot be written; the copy is unchanged.
        """
        if not data.endswith(b"\n"):
            raise InvalidBatchError("a batch must end with a newline")
        with self._exclusive():
            journal = self._journal(key)
            if offset > journal.have:
                raise OutOfOrderError(journal.have)
            context = os.pread(journal.fd, min(offset, BEFORE_BYTES), max(0, offset - BEFORE_BYTES))
            if hash_bytes(context) != before:
                raise DivergedError("the bytes before the batch differ from the copy")
            num_stored_bytes = min(journal.have - offset, len(data))
            if num_stored_bytes and not _is_same(journal.fd, offset, memoryview(data)[:num_stored_bytes]):
                raise DivergedError("the batch differs from the bytes that the copy has there")
            if num_stored_bytes < len(data):
                self._append(journal.fd, journal.have, memoryview(data)[num_stored_bytes:])
                journal.have = offset + len(data)
            return journal.have

    def read(self, key: str, offset: int) -> bytes:
        """Return whole lines of the journal of another machine, from an offset.

        Raises:
            CopyError: if it is not such a journal.
            OSError: if it cannot be read.
        """
        if not _is_node_journal(key):
            raise InvalidBatchError("only journals of machines without rank 0 can be read")
        if not self._journal_path(key).exists():
            return b""
        with self._exclusive():
            journal = self._journal(key)
            data = os.pread(journal.fd, min(_RELAY_BYTES, max(0, journal.have - offset)), offset)
            return data[: data.rfind(b"\n") + 1]

    def files(self) -> dict[str, int]:
        """Return the number of bytes of each other file of the run."""
        return run_files(self.folder)

    def append_to_file(self, path: str, offset: int, data: bytes) -> int:
        """Append to a file that is sent besides the journals; return its size.

        Args:
            path: its path in the run folder.
            offset: where the bytes begin in the trainer's file.
            data: the bytes.

        Raises:
            CopyError: if the path is not one of such a file, or the bytes cannot be accepted.
            OSError: if it cannot be written; the file is unchanged.
        """
        name, _, file_name = path.partition("/")
        pattern, max_bytes = RUN_FILES.get(name, ("(?!)", 0))
        if not re.fullmatch(pattern, file_name, re.ASCII):
            raise InvalidBatchError("there is no such file in a run")
        if offset + len(data) > max_bytes:
            raise InvalidBatchError(f"the file may have at most {max_bytes} bytes")
        with self._exclusive():
            target = self.folder.path / name / file_name
            is_new = offset == 0 and not target.exists()
            if is_new and len(os.listdir(_make_subfolder(target.parent, self.folder))) >= _MAX_FILES:
                raise InvalidBatchError(f"a run has at most {_MAX_FILES} files in {name}")
            fd = open_to_update(target, below=self.folder.path)
            try:
                size = os.fstat(fd).st_size
                if offset > size:
                    raise OutOfOrderError(size)
                num_stored_bytes = min(size - offset, len(data))
                if num_stored_bytes and not _is_same(fd, offset, memoryview(data)[:num_stored_bytes]):
                    raise DivergedError("the file differs from the one that the copy has")
                if num_stored_bytes < len(data):
                    self._append(fd, size, memoryview(data)[num_stored_bytes:])
                    os.utime(target.parent)  # readers look at the time of the folder
                return max(size, offset + len(data))
            finally:
                os.close(fd)

    def store_rank_map(self, rank_map: RankMap) -> None:
        """Replace the map of all ranks, unless the stored one is newer.

        Raises:
            CopyError: if the map is damaged.
            OSError: if it cannot be written; the old map is unchanged.
        """
        if not rank_map.is_valid:
            raise InvalidBatchError("the map of the ranks is damaged")
        with self._mutex:
            stored_map = read_rank_map(self.folder)
            # A map only grows, so a shorter one with the same beginning was on its way for long.
            is_late = (
                stored_map is not None
                and stored_map.is_valid
                and stored_map.first_iteration == rank_map.first_iteration
                and stored_map.last_iteration > rank_map.last_iteration
            )
            if not is_late:
                write_rank_map(self.folder, rank_map)

    def store_beat(self, beat: Beat, skew_s: float | None = None) -> None:
        """Store the heartbeat of the trainer with the time of the server, by which all readers judge its age.

        Args:
            beat: the report of the client.
            skew_s: by how much the clock of the client is ahead.
        """
        # A delay on the way makes the clock of the client look late, never early: the largest value is the best one.
        self._skews = [*self._skews[-_NUM_SKEWS:], skew_s] if skew_s is not None else self._skews
        skew_s = max(self._skews, default=None)
        status = CopyStatus(
            self.entry.run_id,
            time.time(),
            beat.lag_bytes,
            beat.media_pending,
            media_offset=beat.media_offset,
            skew_s=skew_s,
        )
        with self._mutex:
            replace_file(copy_status_path(self.folder), msgspec.json.encode(status), below=self.folder.path)
        with self._mutex:
            if beat.heartbeat is not None:
                self._store_heartbeat(self.folder.heartbeat, beat.heartbeat)
            for rank, heartbeat in beat.ranks.items():
                self._store_rank_heartbeat(rank, heartbeat)

    def store_node_beat(self, beat: Beat) -> None:
        """Store the heartbeats of a machine without rank 0, also to relay them to the one of rank 0."""
        if not beat.ranks:
            return
        with self._mutex:
            heartbeats = {rank: self._store_rank_heartbeat(rank, heartbeat) for rank, heartbeat in beat.ranks.items()}
            # The machine of rank 0 may ask another process for them.
            path = self._node_beats_folder / f"{min(map(int, heartbeats))}.json"
            make_folder(path.parent, below=self.folder.path)
            replace_file(path, msgspec.json.encode(heartbeats), below=self.folder.path)

    def relay(self) -> tuple[dict[str, int], dict[str, RelayedHeartbeat]]:
        """Return the sizes of the journals of machines without rank 0, and the heartbeats of some of their ranks."""
        journals = [journal for journal in list_rank_journals(self.folder) if _is_node_journal(journal.key)]
        sizes = {journal.key: journal_size(journal.path) for journal in journals}
        with self._mutex:
            node_heartbeats = self._read_node_beats()
            ranks = sorted(node_heartbeats, key=int)
            turn = ranks[self._next_relayed : self._next_relayed + _RELAY_RANKS]
            self._next_relayed = 0 if self._next_relayed + len(turn) >= len(ranks) else self._next_relayed + len(turn)
            now_s = time.time()
            relayed = {
                rank: RelayedHeartbeat(max(0.0, now_s - node_heartbeats[rank].time), node_heartbeats[rank])
                for rank in turn
            }
        return sizes, relayed

    @property
    def _node_beats_folder(self) -> Path:
        return self.folder.private / "nodes"

    def _read_node_beats(self) -> dict[str, Heartbeat]:
        """Return the last heartbeat of each rank on a machine without rank 0; read only the files that changed."""
        node_beats: dict[str, _NodeBeat] = {}
        with contextlib.suppress(FileNotFoundError):
            for entry in os.scandir(self._node_beats_folder):
                with contextlib.suppress(OSError, msgspec.MsgspecError):
                    file_info = entry.stat(follow_symlinks=False)
                    version = (file_info.st_ino, file_info.st_mtime_ns)
                    node_beat = self._node_beats.get(entry.name)
                    if node_beat is None or node_beat.version != version:
                        data = read_small(Path(entry.path), MAX_BEAT_BYTES, below=self.folder.path)
                        node_beat = _NodeBeat(version, decode_json(data, dict[str, Heartbeat]))
                    node_beats[entry.name] = node_beat
        self._node_beats = node_beats
        heartbeats: dict[str, Heartbeat] = {}
        for node_beat in node_beats.values():
            for rank, heartbeat in node_beat.heartbeats.items():
                # A machine whose first rank has ended writes another file.
                if rank not in heartbeats or heartbeats[rank].time < heartbeat.time:
                    heartbeats[rank] = heartbeat
        return heartbeats

    def _store_rank_heartbeat(self, rank: str, heartbeat: Heartbeat) -> Heartbeat:
        path = self.folder.rank_heartbeat(int(rank))
        make_folder(path.parent, below=self.folder.path)
        return self._store_heartbeat(path, heartbeat)

    def _store_heartbeat(self, path: Path, heartbeat: Heartbeat) -> Heartbeat:
        # Readers compare a process with the processes of their own machine; names of machines are not unique.
        namespace = REMOTE_NAMESPACE + heartbeat.process.pid_namespace
        now_s = time.time()
        stored_heartbeat = msgspec.structs.replace(
            heartbeat,
            process=msgspec.structs.replace(heartbeat.process, pid_namespace=namespace),
            time=now_s,
            uptime_s=uptime_s(),
            phase_since=heartbeat.phase_since + now_s - heartbeat.time if heartbeat.phase_since else 0.0,
        )
        replace_file(path, msgspec.json.encode(stored_heartbeat), below=self.folder.path)
        return stored_heartbeat

    def close(self) -> None:
        """Close the files and release the lock."""
        with self._mutex:
            self._close_journals()
            self._is_open = False
            self._lock.close()

    @contextlib.contextmanager
    def _exclusive(self) -> Iterator[None]:
        """Exclude other threads and processes; at the end, raise if that failed, so that nothing is acknowledged."""
        with self._mutex:
            if not self._is_open:
                raise CopyBusyError("the copy was closed: try again")
            try:
                with self._append_lock as has_changed:
                    if has_changed:
                        self._close_journals()
                        self.entry = self._read_entry(self.entry.run_id) or self.entry
                    yield
            except AppendLockTimeoutError:
                raise CopyBusyError("another process of the server appends to the copy: try again") from None
            except AppendLockLostError:
                self._close_journals()
                raise CopyBusyError("another process of the server appended to the copy: try again") from None

    def _close_journals(self) -> None:
        while self._journals:
            os.close(self._journals.popitem()[1].fd)

    def _journal(self, key: str) -> _OpenJournal:
        journal = self._journals.get(key)
        if journal is not None and os.fstat(journal.fd).st_nlink == 0:  # someone deleted the file on the server
            os.close(self._journals.pop(key).fd)
        if key not in self._journals:
            path = self._journal_path(key)
            make_folder(path.parent, below=self.folder.path)
            while len(self._journals) >= _MAX_OPEN_JOURNALS:
                os.close(self._journals.popitem(last=False)[1].fd)
            self._journals[key] = _OpenJournal(path, self.folder.path)
        self._journals.move_to_end(key)
        return self._journals[key]

    def _journal_path(self, key: str) -> Path:
        if key == "0":
            return self.folder.journal
        kind, _, number = key.rpartition("-")
        return self.folder.host_journal(int(number)) if kind else self.folder.rank_journal(int(number))

    def _append(self, fd: int, size: int, data: memoryview) -> None:
        """Append to a file of a size, or leave it as it is."""
        try:
            position = size
            while position < size + len(data):
                position += os.pwrite(fd, data[position - size :], position)
            if self._is_durable:
                os.fdatasync(fd)
            else:
                os.close(os.dup(fd))  # NFS writes what it has cached, so that other hosts see it; others do nothing
        except OSError as error:
            with contextlib.suppress(OSError):
                if self._append_lock.is_ours:  # else the rest may be from another process
                    os.ftruncate(fd, size)
            if error.errno in _DISK_FULL_ERRORS:
                raise StorageFullError(f"the disk of the server is full ({error.strerror})") from error
            raise
        self._on_stored(self.entry.owner, len(data))


class RunCopies:
    """All copies below the folder of a server."""

    def __init__(
        self, root: str | os.PathLike[str], *, is_durable: bool = False, clock: Callable[[], float] = time.time
    ) -> None:
        """Open the folder, and create it if necessary.

        Args:
            root: the folder.
            is_durable: flush each batch to the disk before it is acknowledged.
            clock: returns the time.

        Raises:
            OSError: if it cannot be written.
        """
        self.root = Path(root).absolute()
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        make_folder(self.root / _PRIVATE / "runs", below=self.root, mode=0o700)
        self.usage = KeyUsage(self.root)
        self._is_durable = is_durable
        self._clock = clock
        self._mutex = threading.Lock()
        self._open: OrderedDict[str, RunCopy] = OrderedDict()
        self._registering = threading.Lock()
        self._last_search_s: OrderedDict[str, float] = OrderedDict()
        """When the folders of deleted runs were last searched for."""

    def register(self, run_id: str, registration: Registration, owner: str, project: str | None = None) -> RunCopy:
        """Return the copy of a run; create it if there is none.

        Args:
            run_id: the id of the run.
            registration: the description of the run by the client.
            owner: the family of the key.
            project: the project of the key, which takes the place of the one that the client names.

        Raises:
            CopyError: if the id is invalid, or the copy belongs to another key or was deleted.
            OSError: if the folder cannot be created.
        """
        with self._registering:
            entry = self._read_entry(run_id)
            if entry is None or self._unplaced_folder(run_id).path.exists():
                # One process at a time creates copies.
                with exclusive_lock(self.root / _PRIVATE / "register.lock", below=self.root, mode=0o600):
                    entry = self._read_entry(run_id)
                    if entry is not None:
                        _check_owner(entry, owner, project)
                    if entry is None or self._unplaced_folder(run_id).path.exists():
                        entry = self._create(run_id, registration, owner, project)
            _check_owner(entry, owner, project)
            if entry.remote_control != registration.remote_control:
                entry.remote_control = registration.remote_control
                self._write_entry(entry)
            self.set_job(entry, registration.job)
        copy = self.open(run_id, owner, project)
        copy.entry.remote_control = registration.remote_control
        return copy

    def set_job(self, entry: CopyEntry, job: str) -> None:
        """Store the job that a run belongs to now, so that other machines of the job find it."""
        if not job or job == entry.job:
            return
        entry.job = job
        self._write_entry(entry)
        path = self._job_path(entry.owner, job)
        make_folder(path.parent, below=self.root, mode=0o700)
        with exclusive_lock(self.root / _PRIVATE / "jobs.lock", below=self.root, mode=0o600):
            run_ids = [run_id for run_id in self._runs_of_job(path) if run_id != entry.run_id]
            data = msgspec.json.encode([*run_ids, entry.run_id][-_MAX_JOB_RUNS:])
            replace_file(path, data, below=self.root, mode=0o600)

    def join(self, query: Join, owner: str, project: str | None = None) -> RunCopy:
        """Return the copy of the run that a job records now; see `register`.

        Two jobs at once may have the same id, for example on two clusters. If more than one run is possible, none is
        chosen.

        Args:
            query: the job.
            owner: the family of the key.
            project: the project of the key.

        Raises:
            CopyError: if there is no such run, or several.
        """
        oldest_s = self._clock() - query.age_s
        copies: list[RunCopy] = []
        for run_id in self._runs_of_job(self._job_path(owner, query.job)):
            entry = self._read_entry(run_id)
            if entry is None or entry.job != query.job or not _is_same_name(entry.run_name, query.run_name):
                continue
            with contextlib.suppress(CopyGoneError, NotYourRunError):
                copy = self.open(run_id, owner, project)
                status = read_copy_status(copy.folder)
                if status is not None and status.seen >= oldest_s:
                    copies.append(copy)
        if len(copies) > 1:  # an earlier job with the same id, of which the last records are still being sent
            copies = [copy for copy in copies if current_state(copy.folder) is RunState.RUNNING]
        if len(copies) > 1:
            raise AmbiguousJobError(
                f"{len(copies)} runs belong to jobs with the same id: give the runs different names"
            )
        if not copies:
            raise UnknownRunError("no run of the job is being sent by the machine of rank 0")
        return copies[0]

    def _job_path(self, owner: str, job: str) -> Path:
        return self.root / _PRIVATE / "jobs" / f"{hash_bytes(f'{owner}{chr(10)}{job}'.encode())[:32]}.json"

    def _runs_of_job(self, path: Path) -> list[str]:
        try:
            run_ids = decode_json(read_small(path, _MAX_ENTRY_BYTES, below=self.root), list[str])
        except (OSError, msgspec.MsgspecError):
            return []
        return [run_id for run_id in run_ids if _RUN_ID.fullmatch(run_id)]

    def open(self, run_id: str, owner: str, project: str | None = None) -> RunCopy:
        """Return the copy of a registered run; see `register`.

        Raises:
            CopyError: if it is not registered, belongs to another key, was deleted or is in use by another process.
        """
        with self._mutex:
            copy = self._open.get(run_id)
            if copy is not None and copy.is_in_place:
                _check_owner(copy.entry, owner, project)
                copy.used_s = time.monotonic()
                self._open.move_to_end(run_id)
                return copy
            if copy is not None:
                del self._open[run_id]
                copy.close()
            entry = self._read_entry(run_id)
            if entry is None:
                raise UnknownRunError("the run is not registered")
            _check_owner(entry, owner, project)
            folder = self._find_folder(entry)
            _check_owner(entry, owner, project)  # it may have been moved to another project
            copy = RunCopy(
                folder,
                entry,
                is_durable=self._is_durable,
                on_stored=self.usage.add_bytes,
                read_entry=self._read_entry,
            )
            self._open[run_id] = copy
            self._close_idle()
            return copy

    def entry_of(self, folder: RunFolder) -> CopyEntry | None:
        """Return the entry of the copy in a folder; None if it is not a copy."""
        status = read_copy_status(folder)
        return self._read_entry(status.run_id) if status is not None else None

    def close(self) -> None:
        """Close all copies."""
        with self._mutex:
            while self._open:
                self._open.popitem()[1].close()

    @property
    def num_open(self) -> int:
        """How many copies are open to append."""
        return len(self._open)

    def close_idle(self) -> None:
        """Close the copies that were not used for a while."""
        with self._mutex:
            self._close_idle()

    def _close_idle(self) -> None:
        oldest_s = time.monotonic() - _IDLE_S
        while self._open:
            run_id, copy = next(iter(self._open.items()))
            if copy.used_s > oldest_s and len(self._open) <= _MAX_OPEN_COPIES:
                return
            del self._open[run_id]
            copy.close()

    # The index -----------------------------------------------------------------------------------------------------

    def _create(self, run_id: str, registration: Registration, owner: str, project: str | None) -> CopyEntry:
        """Create a copy: a folder aside, the entry, and last the folder's place.

        A server that is killed in between leaves the folder aside. The next registration of the run continues with it.
        """
        folder = self._unplaced_folder(run_id)
        make_folder(folder.private, below=self.root)
        status = CopyStatus(run_id, self._clock())
        replace_file(copy_status_path(folder), msgspec.json.encode(status), below=self.root)
        parent = self.root / project_folder(project or registration.project)
        make_folder(parent, below=self.root)
        path = _unused_path(parent, suggest_run_name(registration.run_name) or "run")
        entry = CopyEntry(
            run_id=run_id,
            folder=path.relative_to(self.root).as_posix(),
            inode=os.stat(folder.path).st_ino,
            owner=owner,
            run_name=registration.run_name,
            registered=self._clock(),
            remote_control=registration.remote_control,
        )
        self._write_entry(entry)
        move_folder(folder.path, path, below=self.root)
        return entry

    def _unplaced_folder(self, run_id: str) -> RunFolder:
        return RunFolder(self._entry_path(run_id).with_suffix(".new"))

    def _find_folder(self, entry: CopyEntry) -> RunFolder:
        """Return the folder of a copy, which may have been moved on the server, or restored from a backup.

        Neither the name nor the inode alone identifies it: both are used again after a folder was deleted.
        """
        path = self.root / entry.folder
        folder_run_id = _copied_id(path)
        is_same_folder = folder_run_id is None and _inode(path) == entry.inode  # someone deleted `.tacho`
        if folder_run_id != entry.run_id and not is_same_folder:
            # A search looks at every run, so a client that does not accept the answer must not cause many.
            last_search_s = self._last_search_s.get(entry.run_id)
            if last_search_s is not None and time.monotonic() - last_search_s < _SEARCH_INTERVAL_S:
                raise CopyGoneError("the run was deleted on the server")
            folders = (path for path in _all_folders(self.root) if _inode(path) == entry.inode)
            new_path = next((path for path in folders if _copied_id(path) == entry.run_id), None)
            if new_path is None:
                self._last_search_s[entry.run_id] = time.monotonic()
                self._last_search_s.move_to_end(entry.run_id)
                if len(self._last_search_s) > _MAX_OPEN_COPIES:
                    self._last_search_s.popitem(last=False)
                raise CopyGoneError("the run was deleted on the server")
            path = new_path
        folder, inode = path.relative_to(self.root).as_posix(), _inode(path)
        if (folder, inode) != (entry.folder, entry.inode):  # moved, or restored from a backup
            entry.folder, entry.inode = folder, inode
            self._write_entry(entry)
        return RunFolder(path)

    def _entry_path(self, run_id: str) -> Path:
        if not _RUN_ID.fullmatch(run_id):
            raise InvalidBatchError("invalid run id")
        return self.root / _PRIVATE / "runs" / f"{run_id}.json"

    def _read_entry(self, run_id: str) -> CopyEntry | None:
        path = self._entry_path(run_id)
        try:
            return decode_json(read_small(path, _MAX_ENTRY_BYTES, below=self.root), CopyEntry)
        except FileNotFoundError:
            return None
        except msgspec.MsgspecError as error:
            raise OSError(errno.EIO, f"is damaged ({error})", str(path)) from None

    def _write_entry(self, entry: CopyEntry) -> None:
        replace_file(self._entry_path(entry.run_id), msgspec.json.encode(entry), below=self.root, mode=0o600)


def _check_owner(entry: CopyEntry, owner: str, project: str | None) -> None:
    """Raise unless a key may append. A new key, also of another project, can have the name of an ended key."""
    is_elsewhere = project is not None and not entry.folder.startswith(f"{project_folder(project)}/")
    if entry.owner != owner or is_elsewhere:
        raise NotYourRunError("another key registered this run: use that one, or ask an administrator")


def project_folder(project: str) -> str:
    """Return the name of the folder of a project: the same for every spelling that a folder cannot have."""
    return suggest_run_name(project) or DEFAULT_PROJECT


def _unused_path(parent: Path, name: str) -> Path:
    """Return a path that is not in use, with a number if necessary.

    Thousands of runs may have one name, so this looks at few of the numbers: it finds one that is not in use after one
    that is, by bisection.
    """

    def path_of(number: int) -> Path:
        return parent / (name if number == 1 else f"{name}-{number}")

    high = 1
    while os.path.lexists(path_of(high)):
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if os.path.lexists(path_of(middle)) else (low, middle)
    return path_of(high)


def check_journal(text: str) -> str:
    """Return the key of the journal in an address: a rank, or `host-` and the number of the file of a host.

    Raises:
        InvalidBatchError: if it is neither.
    """
    match = re.fullmatch(r"(host-)?([0-9]{1,9})", text)
    if match is None or (int(match[2]) > MAX_RANK and not _is_node_journal(text)):
        raise InvalidBatchError("invalid rank")
    return f"{match[1] or ''}{int(match[2])}"


def _is_node_journal(key: str) -> bool:
    """Return whether a journal was written on a machine without rank 0; see `journal._node_folder`."""
    match = re.fullmatch(r"host-([0-9]{9})", key)
    return match is not None and FIRST_NODE_NUMBER <= int(match[1]) <= LAST_NODE_NUMBER


def _is_same_name(run_name: str, requested_name: str) -> bool:
    """Return whether rank 0 may have given a run its name because the program asked for another one."""
    return not requested_name or re.fullmatch(rf"{re.escape(requested_name)}(-\d+)?", run_name) is not None


def _copied_id(path: Path) -> str | None:
    """Return the id of the run that a folder has a copy of; None if it is not known, or there is no such folder."""
    status = read_copy_status(RunFolder(path))
    return status.run_id if status is not None else None


def _inode(path: Path) -> int:
    try:
        return os.stat(path).st_ino
    except OSError:
        return 0


def _all_folders(root: Path) -> Iterator[Path]:
    for path, folders, _ in os.walk(root):
        folders[:] = [name for name in folders if not name.startswith(".")]
        yield from (Path(path, name) for name in folders)
        if os.path.exists(os.path.join(path, "metrics.jsonl")):
            folders.clear()


def _make_subfolder(path: Path, folder: RunFolder) -> Path:
    make_folder(path, below=folder.path)
    return path


def _cut_incomplete_line(fd: int) -> int:
    """Cut off a last line without its end, which a killed server left; return the size."""
    size = os.fstat(fd).st_size
    with open(fd, "rb", buffering=0, closefd=False) as file:
        end = complete_size(file)
    if end < size:
        os.ftruncate(fd, end)
    return end


def _is_same(fd: int, offset: int, data: memoryview) -> bool:
    return os.pread(fd, len(data), offset) == data
