"""Who may append to a copy: one process at a time, for one batch, wherever it runs.

The lock is `flock` on `.tacho/append.lock`, which the kernel releases when a process ends, however it ends. NFS 4 and
cluster file systems extend it to all hosts, unless they are mounted with local locks.

The file contains a number. A process that gets the lock after another one increments the number (a fencing token), so
each process knows whether anyone else was there since its own last turn: if not, its open files and their sizes are
still right. It reads the number again when it has written. A host that was cut off from its file server may have lost
the lock meanwhile without noticing. Then the number has changed, and the batch is not acknowledged: the client sends it
again. What such a process did write is harmless. The bytes of a trainer's file at an offset are always the same, and
they are written at that offset and not at the end, so two processes that write at the same time write the same.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from types import TracebackType

from tachograph._base.files import make_folder, open_lock
from tachograph.journal import RunFolder

try:
    import fcntl
except ImportError:  # Windows: one process only
    fcntl = None  # type: ignore[assignment]

__all__ = ["AppendLock", "AppendLockLostError", "AppendLockTimeoutError"]

_WAIT_S = 0.25
_POLL_S = 0.005
_NUM_DIGITS = 20


class AppendLockTimeoutError(Exception):
    """Another process held the lock for too long."""


class AppendLockLostError(Exception):
    """Another process got the lock while we held it, or the lock file was deleted."""


class AppendLock:
    """The lock of one copy, to be entered for each batch. Use it from one thread at a time.

    Entering it returns whether another process may have changed the copy since the last time.

    Raises:
        AppendLockTimeoutError: by entering, if others hold the lock.
        AppendLockLostError: by leaving, if the lock was lost.
        OSError: if the file cannot be locked.
    """

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._descriptor = self._open()
        self._token = -1
        """The number in the file while we are the last who held the lock."""

    def __enter__(self) -> bool:
        if os.fstat(self._descriptor).st_nlink == 0:  # someone deleted `.tacho`
            os.close(self._descriptor)
            self._descriptor = self._open()
            self._token = -1
        self._lock()
        try:
            token = self._read_token()
            if token == self._token:
                return False
            os.pwrite(self._descriptor, b"%0*d\n" % (_NUM_DIGITS, token + 1), 0)
            self._token = token + 1
            return True
        except BaseException:
            self._unlock()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        is_ours = False
        try:
            is_ours = self.is_ours
        finally:
            self._unlock()
            if not is_ours:
                self._token = -1
        if not is_ours:
            raise AppendLockLostError

    @property
    def is_ours(self) -> bool:
        """Whether no other process has had the lock since."""
        return os.fstat(self._descriptor).st_nlink > 0 and self._read_token() == self._token

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)

    def _open(self) -> int:
        make_folder(self._folder.private, below=self._folder.path)
        return open_lock(self._folder.private / "append.lock", below=self._folder.path)

    def _lock(self) -> None:
        deadline_s = time.monotonic() + _WAIT_S
        while fcntl is not None:
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except OSError as error:
                if error.errno not in {errno.EAGAIN, errno.EACCES}:
                    raise
            if time.monotonic() >= deadline_s:
                raise AppendLockTimeoutError
            time.sleep(_POLL_S)

    def _unlock(self) -> None:
        if fcntl is not None:
            with contextlib.suppress(OSError):
                fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def _read_token(self) -> int:
        text = os.pread(self._descriptor, _NUM_DIGITS, 0)
        return int(text) if text.isdigit() else 0
