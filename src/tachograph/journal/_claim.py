"""Claim a run folder: at most one running process writes a run.

The lock is a POSIX record lock on `.tacho/lock`. It belongs to the process, is not inherited by forked workers, and
is released by the kernel when the process ends, however it ends. The catch: closing *any* descriptor of the lock file
in this process releases the lock. Therefore no other code opens that file, and `_lock_descriptors` keeps the open
descriptors and prevents a second claim by the same process, which the kernel would grant.

Locks do not work on every file system, nor between all machines that share one. There the heartbeat decides whether
another process is still recording.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from tachograph._base.files import UnsafeFileError, check_file, is_trusted, make_folder, open_lock
from tachograph._base.guard import faults, suppress
from tachograph.exceptions import LogDirError, RunNameError
from tachograph.journal._ends import TAIL_BYTES, read_ends
from tachograph.journal._files import restore_journal, stat_journal
from tachograph.journal._folder import RunFolder
from tachograph.journal._liveness import RunState, read_heartbeat, this_process, writer_of
from tachograph.records import check_run_name

try:
    import fcntl
except faults(ImportError):  # Windows: rely on the heartbeat
    fcntl = None  # type: ignore[assignment]

__all__ = ["Claim", "claim_run_folder", "reset_claims_after_fork", "lock_run_folder"]

_SHORT_LOCK_S = 0.5

_lock_descriptors: dict[str, int] = {}
_claim_mutex = threading.RLock()  # a signal handler may start a run while its own thread is starting one


class Claim:
    """The exclusive right to write a run folder, until `release`."""

    def __init__(self, folder: RunFolder, *, is_resume: bool, notes: list[str]) -> None:
        self.folder = folder
        self.is_resume = is_resume
        self.notes = notes
        self._key = os.path.realpath(folder.path)

    def release(self) -> None:
        """Release the lock, so that others can claim the folder."""
        descriptor = _lock_descriptors.pop(self._key, None)
        if descriptor is not None and descriptor >= 0:
            with suppress(OSError):
                os.close(descriptor)

    def renew(self) -> bool:
        """Lock a recreated folder again; return False if another process has locked it in the meantime."""
        self.release()
        return _lock(self.folder, self._key)


def claim_run_folder(log_dir: str, name: str, *, resume: bool) -> Claim:
    """Create or reopen the folder of a run. If the name is in use, append a number and explain it in `Claim.notes`.

    Raises:
        RunNameError: if the name cannot be a folder inside `log_dir`.
        LogDirError: if the folder cannot be created or written.
    """
    check_run_name(name)
    root = Path(log_dir)
    notes: list[str] = []
    with _explain_os_errors(log_dir):
        root.mkdir(parents=True, exist_ok=True)
        real_root = root.resolve()
        for number in itertools.count(1):
            # Absolute: the training code may change its working directory.
            folder = RunFolder(os.path.abspath(os.path.join(log_dir, name if number == 1 else f"{name}-{number}")))
            if real_root not in folder.path.resolve().parents:
                raise RunNameError(
                    f"{folder.path} is a link that points outside {log_dir!r}; remove it or rename the run"
                )
            with _claim_mutex:
                # Resume only the run with the exact name: a numbered one is a different run.
                reason = _try_claim(folder, resume=resume and number == 1)
            if reason is None:
                is_resume = folder.exists() and stat_journal(folder.journal).st_size > 0
                if number > 1:
                    notes.append(f"{notes.pop()}; recording as {folder.name!r}")
                return Claim(folder, is_resume=is_resume, notes=notes)
            notes = [notes[0] if notes else reason]
    raise AssertionError("unreachable")


@contextlib.contextmanager
def lock_run_folder(folder: RunFolder, *, is_shared: bool = False) -> Iterator[bool]:
    """Lock a run folder against writers for the duration of a block; yield False if a writer holds it.

    Processes that share the lock exclude all others from the folder, and not each other.
    """
    key = os.path.realpath(folder.path)
    make_folder(folder.private, below=folder.path)
    with _claim_mutex:
        is_ours = key not in _lock_descriptors and _lock(folder, key, is_shared=is_shared)
    try:
        yield is_ours
    finally:
        if is_ours:
            os.close(_lock_descriptors.pop(key))


def reset_claims_after_fork() -> None:
    """Forget all claims in a forked child: the locks belong to the parent."""
    global _claim_mutex  # noqa: PLW0603 - a thread of the parent may have held it during the fork
    _claim_mutex = threading.RLock()
    _lock_descriptors.clear()


def _try_claim(folder: RunFolder, *, resume: bool) -> str | None:
    """Try to claim one folder; return None on success, or the reason why it is not available."""
    key = os.path.realpath(folder.path)
    if key in _lock_descriptors:
        return f"{folder.name!r} is being recorded by this process"
    if folder.path.exists() and not folder.path.is_dir():
        return f"{str(folder.path)!r} is a file"
    if folder.journal.is_dir():
        return f"{str(folder.journal)!r} is a folder"
    try:
        folder.path.mkdir()
    except faults(FileExistsError):
        if not is_trusted(folder.path):
            return f"{str(folder.path)!r} belongs to another user"
    make_folder(folder.private, below=folder.path)
    if not _lock_soon(folder, key):
        heartbeat = read_heartbeat(folder.heartbeat)
        writer = f"process {heartbeat.process.pid} on {heartbeat.process.host}" if heartbeat else "another process"
        return f"{folder.name!r} is being recorded by {writer}"
    try:
        reason = _existing_run(folder, resume=resume)
        if reason is None:
            for path in (folder.journal, folder.csv):  # reject them now, and not in the writer thread
                check_file(path, below=folder.path)
            restore_journal(folder.journal, below=folder.path)  # if it is compressed: it is continued now
            _remove_leftovers(folder)
            return None
    except BaseException:
        os.close(_lock_descriptors.pop(key))
        raise
    os.close(_lock_descriptors.pop(key))
    return reason


def _existing_run(folder: RunFolder, *, resume: bool) -> str | None:
    """Return why the run in a folder cannot be continued, or None if it can be or there is none."""
    if not folder.exists() or stat_journal(folder.journal).st_size == 0:
        return None
    if not resume:
        return f"run {folder.name!r} already exists (pass resume=True to continue it)"
    return f"{folder.name!r} is being recorded by another process" if _looks_alive(folder) else None


def _remove_leftovers(folder: RunFolder) -> None:
    """Remove the temporary files of a writer that was killed; its journal is not among them."""
    for path in folder.path.glob(".metrics.*.tmp"):
        with suppress(OSError):
            path.unlink()


def _lock_soon(folder: RunFolder, key: str) -> bool:
    """Lock a folder, or wait a moment for a process that only needs the lock to replace a file."""
    deadline_s = time.monotonic() + _SHORT_LOCK_S
    while not _lock(folder, key):
        if time.monotonic() >= deadline_s:
            return False
        time.sleep(0.02)
    return True


def _lock(folder: RunFolder, key: str, *, is_shared: bool = False) -> bool:
    descriptor = open_lock(folder.lock, below=folder.path)
    if fcntl is not None:
        try:
            fcntl.lockf(descriptor, (fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except faults(OSError) as error:
            if error.errno in {errno.EACCES, errno.EAGAIN}:
                os.close(descriptor)
                return False
            # This file system has no locks: rely on the heartbeat.
    _lock_descriptors[key] = descriptor
    return True


def _looks_alive(folder: RunFolder) -> bool:
    """Return whether the heartbeat shows another running writer, which the lock may not detect."""
    heartbeat = read_heartbeat(folder.heartbeat)
    ends = read_ends(folder, TAIL_BYTES, heartbeat)
    return ends.state(heartbeat) is RunState.RUNNING and writer_of(ends.start, heartbeat) != this_process()


@contextlib.contextmanager
def _explain_os_errors(log_dir: str) -> Iterator[None]:
    try:
        yield
    except (LogDirError, RunNameError):
        raise
    except UnsafeFileError as error:
        raise LogDirError(
            error.errno or 0,
            f"cannot record in the log folder {log_dir!r}: {error}, or choose another run name or log_dir=",
        ) from error
    except faults(OSError) as error:
        raise LogDirError(
            error.errno or 0,
            f"cannot write the log folder {log_dir!r} ({error.strerror}: {error.filename}); "
            "pass log_dir= or set TACHO_LOG_DIR to a writable folder",
        ) from error
