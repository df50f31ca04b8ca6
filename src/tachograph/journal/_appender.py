"""Appends bytes to the journal and keeps at it: a full disk or a vanished folder delays records, no more."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path

__all__ = ["Appender"]

_COPY_BYTES = 1 << 20


class Appender:
    """The one writer of a journal file.

    What cannot be written stays in `pending`, at most `max_pending_bytes` of it; whole lines beyond that are dropped
    and counted. A line that was cut by a full disk is completed when there is room again.
    """

    def __init__(self, path: Path, max_pending_bytes: int = 8 << 20) -> None:
        self._path = path
        self._max_pending_bytes = max_pending_bytes
        self._fd = -1
        self.pending = bytearray()
        self.num_dropped_lines = 0
        self.size_bytes = 0
        self._was_cut = False
        self._open()

    def append(self, data: bytes) -> OSError | None:
        """Write what is pending and the data; return the fault if not all of it could be written."""
        self._look_at_size()
        if not self.pending:
            written, fault = self._write(data)
            if fault is None:
                return None
            data = data[written:]
            self._keep(data)
            return fault
        self._keep(data)
        written, fault = self._write(bytes(self.pending))
        del self.pending[:written]
        return fault

    def is_in_place(self) -> bool:
        """Tell whether the path still leads to the file we write."""
        try:
            there, ours = os.stat(self._path), os.fstat(self._fd)
        except OSError:
            return False
        return (there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino)

    def is_cut(self) -> bool:
        """Tell whether somebody has made the file shorter since the last time."""
        self._look_at_size()
        was_cut, self._was_cut = self._was_cut, False
        return was_cut

    def restore(self, path: Path | None = None) -> bool:
        """Put the journal back after it was deleted, or elsewhere; return True if its earlier records could be saved.

        Our descriptor still reaches the deleted file, so nothing written before is lost. If another file has taken
        the place, that one is continued.
        """
        self._path = path or self._path
        saved = False
        old = self._fd
        if not self._path.exists() and old >= 0:
            temporary = self._path.with_name(f".{self._path.name}.restore")
            with open(temporary, "wb") as copy:
                offset = 0
                while block := os.pread(old, _COPY_BYTES, offset):
                    copy.write(block)
                    offset += len(block)
            os.replace(temporary, self._path)
            saved = True
        self._open()
        if old >= 0:
            os.close(old)
        return saved

    def sync(self) -> None:
        """Ask the system to put the file on the disk."""
        with contextlib.suppress(OSError):
            os.fsync(self._fd)

    def close(self) -> None:
        """Close the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _open(self) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_CLOEXEC", 0)
        self._fd = os.open(self._path, flags, 0o644)
        self.size_bytes = os.fstat(self._fd).st_size
        self._end_torn_line()

    def _look_at_size(self) -> None:
        """Go on from where the file ends now: a line must not be glued to one that somebody cut in the middle."""
        size_bytes = os.fstat(self._fd).st_size
        if size_bytes != self.size_bytes:
            self._was_cut = self._was_cut or size_bytes < self.size_bytes
            self.size_bytes = size_bytes
            self._end_torn_line()

    def _end_torn_line(self) -> None:
        """End a line that a dying writer left half written, so that ours begin on their own."""
        is_torn = self.size_bytes > 0 and os.pread(self._fd, 1, self.size_bytes - 1) != b"\n"
        if is_torn and self._write(b"\n")[1] is not None:
            self.pending[:0] = b"\n"

    def _write(self, data: bytes) -> tuple[int, OSError | None]:
        view = memoryview(data)
        written = 0
        try:
            while written < len(data):
                count = os.write(self._fd, view[written:])
                if count == 0:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                written += count
        except OSError as fault:
            return written, fault
        finally:
            self.size_bytes += written
        return written, None

    def _keep(self, data: bytes) -> None:
        room = self._max_pending_bytes - len(self.pending)
        if len(data) <= room:
            self.pending += data
            return
        cut = data.rfind(b"\n", 0, max(room, 0)) + 1
        self.pending += data[:cut]
        self.num_dropped_lines += data.count(b"\n", cut)
