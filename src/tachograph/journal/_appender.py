"""Append bytes to the journal and retry: a full disk or a deleted folder delays records but does not lose them.

The appender owns one descriptor in append mode. Bytes that cannot be written stay in memory, in order, and are written
first the next time. Two rules keep every line readable. A partial line left by a full disk is completed from memory
before anything else is appended. A partial line left by a process that died, or by someone truncating the file, is
terminated with a newline, so readers skip one bad line and our lines start on their own. Therefore each append first
compares the size of the file with the size expected from our own writes.
"""

from __future__ import annotations

import errno
import itertools
import os
from pathlib import Path

from tachograph._base.files import move_file, open_to_append, replacing, write_all
from tachograph._base.guard import faults, suppress

__all__ = ["Appender"]

_COPY_BYTES = 1 << 20


class Appender:
    """The only writer of a journal file.

    Bytes that cannot be written stay in `pending`, up to `max_pending_bytes`; further lines are dropped and counted.
    """

    def __init__(self, path: Path, max_pending_bytes: int = 8 << 20, *, below: Path | None = None) -> None:
        """Open the file.

        Args:
            path: the journal.
            max_pending_bytes: how many bytes to keep that cannot be written.
            below: the run folder, if the file lies deeper in it.

        Raises:
            OSError: if it cannot be opened.
        """
        self._path = path
        self._below = below or path.parent
        self._max_pending_bytes = max_pending_bytes
        self._fd = -1
        self.pending = bytearray()
        self.num_dropped_lines = 0
        self.size_bytes = 0
        self._was_cut = False
        self._open()

    def append(self, data: bytes) -> OSError | None:
        """Write the pending bytes and the data; return the error if not everything could be written."""
        self._check_size()
        if not self.pending:
            num_written, error = self._write(data)
            if error is None:
                return None
            data = data[num_written:]
            self._add_pending(data)
            return error
        self._add_pending(data)
        num_written, error = self._write(bytes(self.pending))
        del self.pending[:num_written]
        return error

    def is_in_place(self) -> bool:
        """Return whether the path still refers to the open file."""
        try:
            path_status, open_status = os.stat(self._path), os.fstat(self._fd)
        except faults(OSError):
            return False
        return (path_status.st_dev, path_status.st_ino) == (open_status.st_dev, open_status.st_ino)

    def is_cut(self) -> bool:
        """Return whether the file was truncated since the last call."""
        self._check_size()
        was_cut, self._was_cut = self._was_cut, False
        return was_cut

    def restore(self, path: Path | None = None) -> bool:
        """Recreate a deleted journal, here or at another path; return True if the earlier records were saved.

        The open descriptor still reads the deleted file, so nothing written before is lost. If another file exists at
        the path, that file is continued. Anything else at the path, such as a folder or a link, gets another name.

        Raises:
            OSError: if the journal cannot be recreated.
        """
        if path is not None:
            self._path, self._below = path, path.parent
        is_recovered = False
        if self._path.is_symlink() or (self._path.exists() and not self._path.is_file()):
            move_file(self._path, _free_path(self._path), below=self._below)
        old = self._fd
        if not self._path.exists() and old >= 0:
            with replacing(self._path, below=self._below) as copy:  # readers never see a partial copy
                offset = 0
                while block := os.pread(old, _COPY_BYTES, offset):
                    offset += write_all(copy, block)
            os.close(copy)
            is_recovered = True
        is_torn = old >= 0 and bool(self.pending) and _is_torn(old)
        if (
            is_torn and not is_recovered
        ):  # the line that the pending bytes complete is in a file of which nothing is left
            del self.pending[: self.pending.find(b"\n") + 1]
            self.num_dropped_lines += 1
        self._open(is_completed_later=is_torn and is_recovered)
        if old >= 0:
            os.close(old)
        return is_recovered

    def sync(self) -> None:
        """Flush the file to the disk."""
        with suppress(OSError):
            os.fsync(self._fd)

    def close(self) -> None:
        """Close the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _open(self, *, is_completed_later: bool = False) -> None:
        self._fd = open_to_append(self._path, below=self._below)
        self.size_bytes = os.fstat(self._fd).st_size
        if not is_completed_later:
            self._terminate_torn_line()

    def _check_size(self) -> None:
        """Detect changes by others, so that our next line is not joined to a line truncated in the middle."""
        size_bytes = os.fstat(self._fd).st_size
        if size_bytes != self.size_bytes:
            self._was_cut = self._was_cut or size_bytes < self.size_bytes
            self.size_bytes = size_bytes
            self._terminate_torn_line()

    def _terminate_torn_line(self) -> None:
        """End an incomplete last line with a newline, so that our lines start on their own."""
        if _is_torn(self._fd) and self._write(b"\n")[1] is not None:
            self.pending[:0] = b"\n"

    def _write(self, data: bytes) -> tuple[int, OSError | None]:
        view = memoryview(data)
        num_written = 0
        try:
            while num_written < len(data):
                num_accepted = os.write(self._fd, view[num_written:])
                if num_accepted == 0:  # treat it as a full disk; retrying here could spin for ever
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                num_written += num_accepted
        except faults(OSError) as fault:
            return num_written, fault
        finally:
            self.size_bytes += num_written
        return num_written, None

    def _add_pending(self, data: bytes) -> None:
        room = self._max_pending_bytes - len(self.pending)
        if len(data) <= room:
            self.pending += data
            return
        # Keep whole lines only: half a line would join with the next one that is kept.
        end = data.rfind(b"\n", 0, max(room, 0)) + 1
        self.pending += data[:end]
        self.num_dropped_lines += data.count(b"\n", end)


def _is_torn(fd: int) -> bool:
    """Return whether the last line of a file is incomplete."""
    size_bytes = os.fstat(fd).st_size
    return size_bytes > 0 and os.pread(fd, 1, size_bytes - 1) != b"\n"


def _free_path(path: Path) -> Path:
    """Return a path next to another one that nothing has yet."""
    names = (path.with_name(f"{path.name}.replaced-{number}") for number in itertools.count(1))
    return next(name for name in names if not os.path.lexists(name))
