"""Move and copy runs, within a file system or to another one.

Within a file system a run moves by one rename. Otherwise, and to copy it, all files are copied to a hidden folder next
to the target. There they are read again and compared with what was read from the source, and the source must not have
changed in the meantime. Then one rename gives the copy its name. Only after that a moved run is removed: it first gets
a hidden name as well, so no half of it can be seen.

So whenever a command is killed, each name is a whole run. A hidden folder that it leaves behind is never the only copy,
and the next transfer from or to the same folder removes it. The lock of the run inside tells whether it is in use.

Times of files are kept, so that cached columns and summaries stay valid. Cursors of sinks are offsets in the journal,
and valid in a copy as well.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tachograph._base.files import (
    UnsafeFileError,
    create_file,
    make_folder,
    make_link,
    move_folder,
    open_to_read,
    temporary_path,
    write_all,
)
from tachograph.catalog._annotations import annotate
from tachograph.catalog._ended import why_not_ended
from tachograph.exceptions import RunNotFoundError, TachographError
from tachograph.journal import MAX_RUN_DEPTH, RunFolder, find_below, lock_run_folder
from tachograph.records import check_run_name

__all__ = ["TransferError", "copy_run", "is_folder_target", "move_run"]

_BLOCK_BYTES = 1 << 20
_TEMPORARY_NAME = re.compile(r"\..+\.[0-9a-f]{16}\.tmp", re.DOTALL)


class TransferError(TachographError):
    """A run cannot be moved or copied; the message says what to do."""


class _Target(NamedTuple):
    path: Path
    below: Path
    """The folder that the user named, or the log folder."""


def move_run(log_dir: str, name: str, target: str, *, is_forced: bool = False) -> Path:
    """Move a run to another name, or into a folder; return its new path.

    Args:
        log_dir: the log folder.
        name: the run, relative to the log folder.
        target: a new name in the log folder, a path, or an existing folder that gets the run.
        is_forced: also if it is unknown whether the run is still being recorded.

    Raises:
        RunNotFoundError: if there is no such run.
        TransferError: if the run is being recorded, the name is taken or the run cannot be moved.
    """
    source, destination = _check(log_dir, name, target, is_forced=is_forced)
    with _explaining(f"cannot move {name!r}"):
        _remove_leftovers(source.path.parent, destination.path.parent)
        with lock_run_folder(source) as is_ours:
            if not is_ours:
                raise TransferError(f"{name!r} is still being recorded; stop it first")
            _make_parents(destination)
            try:
                move_folder(source.path, destination.path, below=Path(log_dir), target_below=destination.below)
            except OSError as error:
                if error.errno != errno.EXDEV:
                    raise
                _copy(source, destination, copied_from=None)
                temporary = temporary_path(source.path)
                move_folder(source.path, temporary, below=Path(log_dir))
                shutil.rmtree(temporary, ignore_errors=True)  # another transfer may be removing it as well
                if temporary.exists():
                    raise TransferError(
                        f"{name!r} was moved, but {str(temporary)!r} cannot be removed; delete it yourself"
                    ) from None
    return destination.path


def copy_run(log_dir: str, name: str, target: str, *, is_forced: bool = False) -> Path:
    """Copy a run; return the path of the copy, which has the same ``run_id``. See `move_run`.

    The custom annotation ``copied_from`` of the copy names the original.
    """
    source, destination = _check(log_dir, name, target, is_forced=is_forced)
    with _explaining(f"cannot copy {name!r}"):
        _remove_leftovers(destination.path.parent)
        _make_parents(destination)
        _copy(source, destination, copied_from=os.path.realpath(source.path))
    return destination.path


# The target ----------------------------------------------------------------------------------------------------------


def _check(log_dir: str, name: str, target: str, *, is_forced: bool) -> tuple[RunFolder, _Target]:
    source = find_below(log_dir, name)
    if source is None:
        raise RunNotFoundError(f"no run {name!r} in {log_dir!r}")
    destination = _resolve_target(log_dir, source, target)
    if destination.path.name != source.name:
        check_run_name(destination.path.name)
    if os.path.lexists(destination.path):
        raise TransferError(f"{str(destination.path)!r} exists already; choose another name")
    parent = destination.path.parent
    around = next((folder for folder in (parent, *parent.parents) if RunFolder(folder).exists()), None)
    if around is not None:
        raise TransferError(
            f"{str(around)!r} is a run, and a run inside a run would not be found; choose another folder"
        )
    if reason := why_not_ended(source, name, is_forced=is_forced):
        raise TransferError(reason)
    return source, destination


def _resolve_target(log_dir: str, source: RunFolder, target: str) -> _Target:
    """Return where a run goes: into an existing folder, to a path, or to a name in the log folder."""
    folder = _existing_folder(log_dir, target)
    if folder is not None:
        return _Target(folder / source.name, folder)
    target_path = Path(target).expanduser()
    if target.endswith(os.sep):
        raise TransferError(f"the folder {target!r} does not exist; create it first")
    if os.sep in target and target_path.parent.is_dir():
        return _Target(target_path, target_path.parent)
    if target_path.is_absolute():
        raise TransferError(f"the folder {str(target_path.parent)!r} does not exist; create it first")
    parts = target.split("/")
    if len(parts) > MAX_RUN_DEPTH + 1:
        raise TransferError(f"{target!r} has more than {MAX_RUN_DEPTH} folders, so lists would not find the run")
    for part in parts:
        check_run_name(part)
    return _Target(Path(log_dir, target), Path(log_dir))


def is_folder_target(log_dir: str, target: str) -> bool:
    """Return whether a target is an existing folder, into which runs are moved or copied under their names."""
    return _existing_folder(log_dir, target) is not None


def _existing_folder(log_dir: str, target: str) -> Path | None:
    """Return the folder that a target names: a path, or a folder of runs in the log folder."""
    target_path = Path(target).expanduser()
    is_path = os.sep in target or target in {".", ".."}
    candidates = [target_path] if is_path else []
    if not target_path.is_absolute() and target not in {".", ".."}:
        candidates.append(Path(log_dir, target))
    return next((path for path in candidates if path.is_dir() and not RunFolder(path).exists()), None)


def _make_parents(destination: _Target) -> None:
    if destination.path.parent != destination.below:
        make_folder(destination.path.parent, below=destination.below)


# Copying -------------------------------------------------------------------------------------------------------------


class _Entry(NamedTuple):
    mode: int
    size: int
    mtime_ns: int


def _copy(source: RunFolder, destination: _Target, *, copied_from: str | None) -> None:
    """Copy a run to a hidden folder, verify it and give it its name."""
    entries = _list_files(source.path)
    total = sum(entry.size for entry in entries.values() if stat.S_ISREG(entry.mode))
    free = shutil.disk_usage(destination.path.parent).free
    if free < total:
        raise TransferError(
            f"{str(destination.path.parent)!r} has {free / 1e6:,.0f} MB free, and the run needs {total / 1e6:,.0f} MB"
        )
    temporary = temporary_path(destination.path)
    make_folder(temporary, below=destination.path.parent)
    try:
        with lock_run_folder(RunFolder(temporary)) as is_ours:
            if not is_ours:
                raise TransferError(f"{str(temporary)!r} is used by another process; repeat the command")
            for name, entry in entries.items():
                _copy_entry(source.path, temporary, name, entry)
            if _list_files(source.path) != entries:
                raise TransferError(f"{source.name!r} was changed while it was copied; repeat the command")
            for name, entry in reversed(entries.items()):  # a folder after its content
                if stat.S_ISDIR(entry.mode):
                    os.chmod(temporary / name, stat.S_IMODE(entry.mode) & 0o777 | 0o700)
                    os.utime(temporary / name, ns=(entry.mtime_ns, entry.mtime_ns))
            if copied_from is not None:
                value = copied_from.encode("utf-8", "backslashreplace").decode()[:1_000]
                annotate(RunFolder(temporary), [{"op": "set", "field": "custom.copied_from", "value": value}])
            shutil.copystat(source.path, temporary)
            move_folder(temporary, destination.path, below=destination.path.parent)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def _list_files(folder: Path) -> dict[str, _Entry]:
    """Return the files and folders of a run, a folder before its content; without locks, pipes and sockets."""
    entries: dict[str, _Entry] = {}
    waiting = [""]
    while waiting:
        outer = waiting.pop()
        with os.scandir(folder / outer) as directory:
            for item in sorted(directory, key=lambda item: item.name):
                name = os.path.join(outer, item.name)
                status = item.stat(follow_symlinks=False)
                is_lock = outer == ".tacho" and (item.name == "lock" or item.name.endswith(".lock"))
                if stat.S_ISDIR(status.st_mode):
                    # The time of a folder is kept, but readers change it while they use the caches.
                    entries[name] = _Entry(
                        status.st_mode, 0, status.st_mtime_ns if not name.startswith(".tacho") else 0
                    )
                    waiting.append(name)
                elif not is_lock and (stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode)):
                    entries[name] = _Entry(status.st_mode, status.st_size, status.st_mtime_ns)
    return entries


def _copy_entry(source: Path, target: Path, name: str, entry: _Entry) -> None:
    path = target / name
    if stat.S_ISDIR(entry.mode):
        make_folder(path, below=target)
        return
    if stat.S_ISLNK(entry.mode):
        make_link(path, Path(os.readlink(source / name)), below=target)
        return
    descriptor = create_file(path, below=target)
    try:
        with open_to_read(source / name, below=source) as file:
            source_hash = hashlib.blake2b()
            while block := file.read(_BLOCK_BYTES):
                source_hash.update(block)
                write_all(descriptor, block)
        os.fsync(descriptor)
        target_hash = hashlib.blake2b()
        offset = 0
        while block := os.pread(descriptor, _BLOCK_BYTES, offset):
            target_hash.update(block)
            offset += len(block)
        if target_hash.digest() != source_hash.digest():
            raise TransferError(f"{path} differs from its original after copying; check the disk")
    finally:
        os.close(descriptor)
    os.chmod(path, stat.S_IMODE(entry.mode) & 0o777)
    os.utime(path, ns=(entry.mtime_ns, entry.mtime_ns))


def _remove_leftovers(*folders: Path) -> None:
    """Remove temporary folders of transfers that were killed."""
    for folder in dict.fromkeys(folders):
        with contextlib.suppress(OSError):
            for name in os.listdir(folder):
                path = folder / name
                if _TEMPORARY_NAME.fullmatch(name) and path.is_dir() and not path.is_symlink():
                    with lock_run_folder(RunFolder(path)) as is_ours:
                        if is_ours:
                            shutil.rmtree(path)


@contextlib.contextmanager
def _explaining(what: str) -> Iterator[None]:
    try:
        yield
    except UnsafeFileError as error:
        raise TransferError(f"{what}: {error}") from error
    except FileExistsError as error:
        raise TransferError(f"{what}: {error.filename!r} exists already; choose another name") from error
    except OSError as error:
        if error.errno == errno.ENOTEMPTY:
            raise TransferError(f"{what}: the name has just been taken; choose another one") from error
        if isinstance(error, TachographError):
            raise
        raise TransferError(f"{what}: {error.strerror} ({error.filename}); nothing was removed") from error
