"""One journal and one heartbeat per host, for jobs of so many ranks that a file of each one is too much for a disk.

Local rank 0 of a host writes `ranks/host-00012.jsonl` (`HostFile`). The other ranks of the host send it their lines and
heartbeats over a Unix datagram socket (`HostChannel`). Nothing ever waits: a sender keeps lines that the socket does
not accept, up to a limit, and drops and counts the rest; a thread of the receiver empties the socket, also while its
disk is slow. If local rank 0 ends or stops, sending fails, and the sender continues with a file of its own.

The socket is in a folder that only this user can use. Besides, the kernel states the user of each message, and a
message must belong to the job. A socket of a process that was killed is removed by the next one.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import socket
import stat
import struct
import time
from collections import deque
from pathlib import Path
from typing import Any, Protocol

import msgspec

from tachograph._base.files import make_folder, replace_file
from tachograph._base.guard import faults, suppress
from tachograph._base.threads import TelemetryThread
from tachograph._base.typed import decode_json
from tachograph.journal import (
    MAX_HOST_RANKS,
    Appender,
    Heartbeat,
    HostHeartbeat,
    RunFolder,
    mark_rank,
    restore_journal,
)

__all__ = ["MAX_RANK_FILES", "HostChannel", "HostFile", "HostLostError", "OwnFile", "RankOutlet", "has_host_files"]

MAX_RANK_FILES = 64
"""The largest number of ranks of which each one has a file of its own."""
_MESSAGE_BYTES = 64 << 10
_MAX_LINE_BYTES = 48 << 10
"""A rank with a longer line continues with a file of its own."""
_MAX_UNSENT_BYTES = 256 << 10
_MAX_RECEIVED_BYTES = 8 << 20
_MAX_PENDING_BYTES = 8 << 20
_STALLED_S = 10.0
"""A receiver that refuses everything for so long is stopped."""
_MIN_BEAT_S = 2.0
_MAX_BEAT_S = 10.0
_RANKS_PER_BEAT_S = 1_000
"""With more ranks the hosts write their heartbeats less often."""
_LAST_WAIT_S = 1.0
"""How long local rank 0 waits for the last lines of the other ranks when it ends."""
_RUNNING_S = 10.0
_SOCKETS = "/tmp"  # noqa: S108 - not `TMPDIR`, which may differ between ranks; the folder in it is checked
_MAX_SOCKETS = 100
_CREDENTIALS = struct.Struct("=iII")
_LINES = re.compile(rb'(?:\{"event":"[^"\\\n]*","from_rank":\d{1,9},[^\n]*\}\n)*')
_LINE_RANK = re.compile(rb'(?m)^\{"event":"[^"\\]*","from_rank":(\d{1,9}),')
_BUSY = {errno.EAGAIN, errno.EWOULDBLOCK, errno.ENOBUFS}


class HostLostError(Exception):
    """The process that writes the file of the host accepts nothing any more; the unsent lines are in the channel."""


class RankOutlet(Protocol):
    """Where the lines and heartbeats of a rank go."""

    @property
    def num_bytes(self) -> int:
        """The size of the file, if it is the file of this rank alone."""
        ...

    @property
    def pending(self) -> bytes | bytearray:
        """Lines that could not be written or sent yet."""
        ...

    def append(self, lines: bytes) -> int:
        """Write or send lines, after pending ones; return how many were dropped."""
        ...

    def beat(self, heartbeat: Heartbeat) -> None:
        """Write or send the heartbeat."""
        ...

    def check(self) -> None:
        """Check that the file is in place."""
        ...

    def close(self) -> None:
        """Write everything to the disk."""
        ...

    def abandon(self) -> None:
        """In a forked child: leave the file to the parent."""
        ...


class _Message(msgspec.Struct):
    """The first line of a message; the lines of the rank follow it."""

    rank: int
    heartbeat: Heartbeat | None = None
    is_last: bool = False


def has_host_files(world_size: int) -> bool:
    """Return whether a job is so large that each host has one file."""
    return world_size > MAX_RANK_FILES and hasattr(socket, "AF_UNIX")


class OwnFile:
    """The journal of one rank alone.

    Args:
        folder: the folder of the run, or of this machine's ranks.
        rank: the rank.
        max_pending_bytes: how many bytes to keep while the disk cannot be written.
        number: the number of the file if it belongs to another run folder; the lines then state the rank.

    Raises:
        OSError: if it cannot be opened.
    """

    def __init__(self, folder: RunFolder, rank: int, max_pending_bytes: int, number: int | None = None) -> None:
        self._folder = folder
        self._rank = rank
        self._states_rank = number is not None
        path = folder.rank_journal(rank) if number is None else folder.host_journal(number)
        self._appender = _open_appender(path, folder, max_pending_bytes)

    @property
    def num_bytes(self) -> int:
        """The size of the file."""
        return self._appender.size_bytes

    @property
    def pending(self) -> bytearray:
        """Lines that could not be written yet."""
        return self._appender.pending

    def append(self, lines: bytes) -> int:
        """Write lines; return how many were dropped."""
        return _append(self._appender, mark_rank(lines, self._rank) if self._states_rank else lines)

    def beat(self, heartbeat: Heartbeat) -> None:
        """Write the heartbeat."""
        _write_heartbeat(self._folder, self._folder.rank_heartbeat(self._rank), heartbeat)

    def check(self) -> None:
        """Restore the file if it is not in place."""
        _restore(self._appender, self._folder)

    def close(self) -> None:
        """Write everything to the disk."""
        self._appender.sync()
        self._appender.close()

    def abandon(self) -> None:
        """In a forked child: leave the file to the parent."""
        self._appender.close()


class HostFile:
    """The journal and the heartbeat of the ranks of a host. Used by the writer thread of local rank 0 only.

    Rank 0 has a journal of its own, so it writes only the lines of the other ranks.

    Args:
        folder: the folder of the run, or of this machine's ranks.
        rank: the rank of this process.
        job: the id of the job.
        world_size: the number of ranks of the job.
        number: the number of the file, if it is not the rank.

    Raises:
        OSError: if the journal cannot be opened.
    """

    def __init__(self, folder: RunFolder, rank: int, job: str, world_size: int, number: int | None = None) -> None:
        self._folder = folder
        self._rank = rank
        self._number = rank if number is None else number
        self._appender: Appender | None = None
        if rank:
            self._open()
        self._receiver = _Receiver(_socket_path(folder, job), job, world_size)
        self._own_heartbeat: Heartbeat | None = None
        self._beat_s = min(max(_MIN_BEAT_S, world_size / _RANKS_PER_BEAT_S), _MAX_BEAT_S)
        self._next_beat_at = 0.0
        self._beaten_ranks: set[int] = set()

    @property
    def num_bytes(self) -> int:
        """Nothing: the file belongs to several ranks."""
        return 0

    @property
    def pending(self) -> bytes | bytearray:
        """Lines that could not be written yet."""
        return b"" if self._appender is None else self._appender.pending

    def append(self, lines: bytes = b"") -> int:
        """Write lines of this rank and the lines of the others; return how many were dropped."""
        data, num_dropped = self._receiver.take()
        data = mark_rank(lines, self._rank) + data
        if self._appender is None and data:
            try:
                self._open()
            except faults(OSError):
                return num_dropped + data.count(b"\n")
        if self._appender is not None and (data or self._appender.pending):
            num_dropped += _append(self._appender, data)
        if self._receiver.heartbeats.keys() != self._beaten_ranks or time.monotonic() >= self._next_beat_at:
            self._write_heartbeats()
        return num_dropped

    def beat(self, heartbeat: Heartbeat) -> None:
        """Take the heartbeat of this rank, which is written with the others."""
        self._own_heartbeat = heartbeat
        if time.monotonic() >= self._next_beat_at:
            self._write_heartbeats()

    def _write_heartbeats(self) -> None:
        heartbeats = dict(self._receiver.heartbeats)
        self._beaten_ranks = set(heartbeats)
        if self._own_heartbeat is not None:
            heartbeats[self._rank] = self._own_heartbeat
        self._next_beat_at = time.monotonic() + self._beat_s
        if heartbeats:
            path = self._folder.host_heartbeat(self._number)
            _write_heartbeat(self._folder, path, HostHeartbeat(dict(sorted(heartbeats.items()))))

    def check(self) -> None:
        """Restore the file if it is not in place."""
        if self._appender is not None:
            _restore(self._appender, self._folder)

    def close(self) -> None:
        """Wait a moment for the last lines of ranks that still run, and write everything to the disk."""
        deadline_s = time.monotonic() + _LAST_WAIT_S
        while self._receiver.has_senders and time.monotonic() < deadline_s:
            time.sleep(0.02)
        self._receiver.close()
        self.append()
        self._write_heartbeats()
        if self._appender is not None:
            self._appender.sync()
            self._appender.close()

    def abandon(self) -> None:
        """In a forked child: leave the file and the socket to the parent."""
        self._receiver.abandon()
        if self._appender is not None:
            self._appender.close()

    def _open(self) -> None:
        self._appender = _open_appender(self._folder.host_journal(self._number), self._folder, _MAX_PENDING_BYTES)


class _Receiver:
    """Receives lines and heartbeats in a thread, so that the socket is empty however busy the writer thread is."""

    def __init__(self, path: str, job: str, world_size: int) -> None:
        self._path = path
        self._job = job
        self._world_size = world_size
        self._lines: deque[bytes] = deque()
        self._num_received_bytes = 0
        self._num_taken_bytes = 0
        self._num_dropped = 0
        self._num_reported = 0
        self.heartbeats: dict[int, Heartbeat] = {}
        self._heard_at: dict[int, float] = {}
        """When a rank that has not ended was last heard of."""
        self._socket = _bind(path)
        if self._socket is not None:
            TelemetryThread(self._receive, name="tachograph-host", args=(self._socket,)).start()

    @property
    def has_senders(self) -> bool:
        """Whether another rank still runs."""
        oldest_s = time.monotonic() - _RUNNING_S
        return any(heard_at > oldest_s for heard_at in list(self._heard_at.values()))

    def take(self) -> tuple[bytes, int]:
        """Return the lines received since the last call, and how many were dropped."""
        parts = []
        with suppress(IndexError):
            while True:
                parts.append(self._lines.popleft())
        data = b"".join(parts)
        self._num_taken_bytes += len(data)
        num_dropped = self._num_dropped - self._num_reported
        self._num_reported += num_dropped
        return data, num_dropped

    def close(self) -> None:
        """Remove the socket: senders learn at once that it is gone."""
        if self._socket is not None:
            with suppress(OSError):
                os.unlink(self._path)
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RD)  # wakes the thread
            self._socket.close()
            self._socket = None

    def abandon(self) -> None:
        """In a forked child: close the descriptor, or senders would not learn when the parent ends."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _receive(self, listener: socket.socket) -> None:
        space = socket.CMSG_SPACE(_CREDENTIALS.size)
        with suppress(OSError):  # closed
            while True:
                data, ancillary, flags, _ = listener.recvmsg(_MESSAGE_BYTES + 1, space)
                if not data:
                    return
                if not flags & socket.MSG_TRUNC and len(data) <= _MESSAGE_BYTES and _is_own_user(ancillary):
                    self._add(data)

    def _add(self, data: bytes) -> None:
        head, _, lines = data.partition(b"\n")
        try:
            message = decode_json(head, _Message)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            return
        rank = message.rank
        if not 0 < rank < self._world_size or (rank not in self.heartbeats and len(self.heartbeats) >= MAX_HOST_RANKS):
            return
        if message.heartbeat is not None:
            if message.heartbeat.job != self._job:
                return
            self.heartbeats[rank] = message.heartbeat
        elif rank not in self.heartbeats:
            return
        self._add_lines(rank, lines)
        if message.is_last:
            self._heard_at.pop(rank, None)
        else:
            self._heard_at[rank] = time.monotonic()

    def _add_lines(self, rank: int, lines: bytes) -> None:
        is_valid = _LINES.fullmatch(lines) is not None and all(
            int(number) == rank for number in set(_LINE_RANK.findall(lines))
        )
        has_room = self._num_received_bytes - self._num_taken_bytes + len(lines) <= _MAX_RECEIVED_BYTES
        if not is_valid or not has_room:
            self._num_dropped += lines.count(b"\n")
        elif lines:
            self._num_received_bytes += len(lines)
            self._lines.append(lines)


class HostChannel:
    """Sends the lines of a rank to local rank 0 of its host.

    Raises:
        OSError: if there is no socket, or local rank 0 has not opened it yet.
    """

    def __init__(self, folder: RunFolder, rank: int, job: str) -> None:
        self._rank = rank
        path = _socket_path(folder, job)
        _check_private(os.path.dirname(path))
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            self._socket.setblocking(False)
            self._socket.connect(path)
        except BaseException:
            self._socket.close()
            raise
        self.pending = bytearray()
        self._first_refused_at: float | None = None
        self._refused_s = 0.0
        """How long the receiver has refused all messages. Time in which none was sent does not count."""
        self._has_beaten = False

    @property
    def num_bytes(self) -> int:
        """Nothing: the file belongs to several ranks."""
        return 0

    @property
    def unsent_lines(self) -> bytes:
        """The pending lines, as a file of this rank alone has them."""
        return bytes(self.pending).replace(b',"from_rank":%d,' % self._rank, b",")

    def append(self, lines: bytes) -> int:
        """Send lines; return how many were dropped because the socket is full.

        Raises:
            HostLostError: if the receiver is gone; no line is lost.
        """
        marked = mark_rank(lines, self._rank)
        room = _MAX_UNSENT_BYTES - len(self.pending)
        end = len(marked) if len(marked) <= room else marked.rfind(b"\n", 0, max(room, 0)) + 1
        if end < len(marked) and not self.pending:  # not for want of room: a line that is larger than a message
            end = len(marked)
        self.pending += marked[:end]
        try:
            self._send_pending()
        except HostLostError:
            self.pending += marked[end:]
            raise
        return marked.count(b"\n", end)

    def beat(self, heartbeat: Heartbeat) -> None:
        """Send the heartbeat, unless the socket is full: another one follows.

        Raises:
            HostLostError: if the receiver is gone.
        """
        self._has_beaten = self._send(_Message(self._rank, heartbeat)) or self._has_beaten
        self._send_pending()

    def check(self) -> None:
        """Find out whether the receiver is gone or stopped.

        Raises:
            HostLostError: if it is.
        """
        self._send_pending()
        if self._refused_s > _STALLED_S:
            raise HostLostError

    def close(self) -> None:
        """Report that nothing follows."""
        with suppress(HostLostError):
            self._send(_Message(self._rank, is_last=True))
        self._socket.close()

    def abandon(self) -> None:
        """In a forked child: leave the socket to the parent."""
        self._socket.close()

    def _send_pending(self) -> None:
        while self.pending and self._has_beaten:
            end = len(self.pending)
            if end > _MAX_LINE_BYTES:
                end = self.pending.rfind(b"\n", 0, _MAX_LINE_BYTES) + 1
            if not end:  # a line that is too long
                raise HostLostError
            if not self._send(_Message(self._rank), bytes(self.pending[:end])):
                return
            del self.pending[:end]

    def _send(self, message: _Message, lines: bytes = b"") -> bool:
        """Send a message; return False if the socket is full."""
        try:
            self._socket.send(msgspec.json.encode(message) + b"\n" + lines)
        except faults(OSError) as error:
            if error.errno not in _BUSY:
                raise HostLostError from error
            now_s = time.monotonic()
            self._first_refused_at = now_s if self._first_refused_at is None else self._first_refused_at
            self._refused_s = now_s - self._first_refused_at
            return False
        self._first_refused_at, self._refused_s = None, 0.0
        return True


# Files ---------------------------------------------------------------------------------------------------------------


def _open_appender(path: Path, folder: RunFolder, max_pending_bytes: int) -> Appender:
    make_folder(path.parent, below=folder.path)
    restore_journal(path, below=folder.path)  # if it is compressed: it is continued now
    return Appender(path, max_pending_bytes, below=folder.path)


def _append(appender: Appender, lines: bytes) -> int:
    if lines or appender.pending:
        appender.append(lines)
    num_dropped, appender.num_dropped_lines = appender.num_dropped_lines, 0
    return num_dropped


def _restore(appender: Appender, folder: RunFolder) -> None:
    if not appender.is_in_place():
        with suppress(OSError):  # if the whole run folder is gone, rank 0 restores it, and the next check retries
            make_folder(folder.ranks, below=folder.path)
            appender.restore()


def _write_heartbeat(folder: RunFolder, path: Path, heartbeat: Heartbeat | HostHeartbeat) -> None:
    with suppress(OSError):
        make_folder(path.parent, below=folder.path)
        replace_file(path, msgspec.json.encode(heartbeat), below=folder.path)


# Sockets -------------------------------------------------------------------------------------------------------------


def _socket_path(folder: RunFolder, job: str) -> str:
    """Return the path of the socket of a job, for one of its runs and on this host."""
    identity = "\n".join((os.path.realpath(folder.path), job, socket.gethostname()))
    name = hashlib.blake2b(identity.encode("utf-8", "surrogateescape"), digest_size=12).hexdigest()
    return os.path.join(_SOCKETS, f"tachograph-{os.geteuid()}", f"{name}.sock")


def _check_private(path: str) -> None:
    """Raise OSError unless a folder belongs to this user, and no other user can use it."""
    status = os.lstat(path)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077:
        raise PermissionError(errno.EPERM, "is not a private folder of this user", path)


def _bind(path: str) -> socket.socket | None:
    """Return a new socket; None if there can be none, or another process of the job has it: ranks use own files."""
    parent = os.path.dirname(path)
    listener = None
    try:
        with suppress(FileExistsError):
            os.mkdir(parent, 0o700)
        _check_private(parent)
        _remove_dead_sockets(parent)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        if hasattr(socket, "SO_PASSCRED"):
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        listener.bind(path)
    except faults(OSError):
        if listener is not None:
            listener.close()
        return None
    return listener


def _remove_dead_sockets(folder: str) -> None:
    """Remove sockets of processes that were killed."""
    for name in os.listdir(folder)[:_MAX_SOCKETS]:
        path = os.path.join(folder, name)
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect(path)
            except faults(ConnectionRefusedError):
                os.unlink(path)


def _is_own_user(ancillary: list[tuple[int, int, bytes]]) -> bool:
    """Return whether the kernel states that this user sent a message; where it states nothing, the folder protects."""
    kind: Any = getattr(socket, "SCM_CREDENTIALS", None)
    for level, message_kind, data in ancillary:
        if level == socket.SOL_SOCKET and message_kind == kind and len(data) >= _CREDENTIALS.size:
            return bool(_CREDENTIALS.unpack(data[: _CREDENTIALS.size])[1] in {os.geteuid(), 0})
    return kind is None
