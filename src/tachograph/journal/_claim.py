"""One run folder, one living writer.

The lock is a POSIX record lock: it belongs to the process, is not inherited by forked workers, and is gone the moment
the process is, however it died. The price is that closing *any* descriptor of the lock file in this process drops it,
so nothing else opens that file, and what this process holds is remembered here.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import threading
from collections.abc import Iterator
from pathlib import Path

from tachograph.exceptions import LogDirError, RunNameError
from tachograph.journal._ends import TAIL_BYTES, read_ends
from tachograph.journal._folder import RunFolder
from tachograph.journal._liveness import RunState, read_heartbeat, this_process, writer_of
from tachograph.records import check_run_name

try:
    import fcntl
except ImportError:  # Windows: the heartbeat alone tells
    fcntl = None  # type: ignore[assignment]

__all__ = ["Claim", "claim_run_folder", "forget_claims", "hold_run_folder"]

_held: dict[str, int] = {}
_taking = threading.Lock()


class Claim:
    """The right to write a run folder; `release` gives it back."""

    def __init__(self, folder: RunFolder, *, resumed: bool, notes: list[str]) -> None:
        self.folder = folder
        self.resumed = resumed
        self.notes = notes
        self._key = os.path.realpath(folder.path)

    def release(self) -> None:
        """Let others claim the folder."""
        descriptor = _held.pop(self._key, None)
        if descriptor is not None and descriptor >= 0:
            with contextlib.suppress(OSError):
                os.close(descriptor)

    def renew(self) -> bool:
        """Take the lock again after the folder was deleted and made anew; False if somebody else has it by now."""
        self.release()
        return _lock(self.folder, self._key)


def claim_run_folder(log_dir: str, name: str, *, resume: bool) -> Claim:
    """Make or take the folder of a run; a name that is in use gets a number behind it, and a note says so.

    Raises:
        RunNameError: if the name cannot be a folder inside `log_dir`.
        LogDirError: if the folder cannot be made or written.
    """
    check_run_name(name)
    root = Path(log_dir)
    notes: list[str] = []
    with _clear_errors(log_dir):
        root.mkdir(parents=True, exist_ok=True)
        real_root = root.resolve()
        for number in itertools.count(1):
            # Absolute: the training code may change its working directory.
            folder = RunFolder(os.path.abspath(os.path.join(log_dir, name if number == 1 else f"{name}-{number}")))
            if real_root not in folder.path.resolve().parents:
                raise RunNameError(
                    f"{folder.path} is a link that leads out of {log_dir!r}; remove it or rename the run"
                )
            with _taking:
                # Only the run that was asked for is resumed: a neighbour with a number is another story.
                reason = _take(folder, resume=resume and number == 1)
            if reason is None:
                resumed = folder.exists() and folder.journal.stat().st_size > 0
                if number > 1:
                    notes.append(f"{notes.pop()}; this run is {folder.name!r}")
                return Claim(folder, resumed=resumed, notes=notes)
            notes = [notes[0] if notes else reason]
    raise AssertionError("unreachable")


@contextlib.contextmanager
def hold_run_folder(folder: RunFolder) -> Iterator[bool]:
    """Keep writers out of a folder for a while; gives False if there is one."""
    key = os.path.realpath(folder.path)
    folder.private.mkdir(exist_ok=True)
    with _taking:
        is_ours = key not in _held and _lock(folder, key)
    try:
        yield is_ours
    finally:
        if is_ours:
            os.close(_held.pop(key))


def forget_claims() -> None:
    """In a forked child: the locks stayed with the parent."""
    global _taking  # noqa: PLW0603 - another thread of the parent may have held it
    _taking = threading.Lock()
    _held.clear()


def _take(folder: RunFolder, *, resume: bool) -> str | None:
    """Claim one folder; return why it cannot be had, or None."""
    key = os.path.realpath(folder.path)
    if key in _held:
        return f"{folder.name!r} is being recorded by this process"
    if folder.path.exists() and not folder.path.is_dir():
        return f"{str(folder.path)!r} is a file"
    if folder.journal.is_dir():
        return f"{str(folder.journal)!r} is a folder"
    folder.private.mkdir(parents=True, exist_ok=True)
    if not _lock(folder, key):
        heartbeat = read_heartbeat(folder.heartbeat)
        who = f"process {heartbeat.process.pid} on {heartbeat.process.host}" if heartbeat else "another process"
        return f"{folder.name!r} is being recorded by {who}"
    if folder.exists() and folder.journal.stat().st_size > 0:
        reason = None
        if not resume:
            reason = f"there is a run {folder.name!r} already (resume=True would continue it)"
        elif _looks_alive(folder):
            reason = f"{folder.name!r} is being recorded by another process"
        if reason is not None:
            os.close(_held.pop(key))
        return reason
    return None


def _lock(folder: RunFolder, key: str) -> bool:
    descriptor = os.open(folder.lock, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o644)
    if fcntl is not None:
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in {errno.EACCES, errno.EAGAIN}:
                os.close(descriptor)
                return False
            # A file system without locks: the heartbeat alone tells.
    _held[key] = descriptor
    return True


def _looks_alive(folder: RunFolder) -> bool:
    """Ask the heartbeat, for writers that our lock cannot see. Only what another process said counts."""
    heartbeat = read_heartbeat(folder.heartbeat)
    ends = read_ends(folder, TAIL_BYTES, heartbeat)
    return ends.state(heartbeat) is RunState.RUNNING and writer_of(ends.start, heartbeat) != this_process()


@contextlib.contextmanager
def _clear_errors(log_dir: str) -> Iterator[None]:
    try:
        yield
    except (LogDirError, RunNameError):
        raise
    except OSError as error:
        raise LogDirError(
            error.errno or 0,
            f"cannot write the log folder {log_dir!r} ({error.strerror}: {error.filename}); "
            "pass log_dir= or set TACHO_LOG_DIR to a folder that can be written",
        ) from error
