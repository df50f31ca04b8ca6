"""The trash of a log folder: removed runs, whole, until they are restored or deleted for good.

    .tachograph/trash/<id>.json       the manifest: name of the run, when it was removed and by whom
    .tachograph/trash/<id>/           the run folder
    .tachograph/trash/deleting-<id>/  a run that is being deleted for good

A run moves by one rename, so it is either in its place or in the trash, whole. The manifest is written before the run
moves into the trash and removed after the run moved out. So whenever a command is killed, at worst a manifest without a
run is left, which means nothing and is removed later. Before files are deleted the folder gets a name that nobody
restores, so half a run cannot come back.

A journal that is about to be replaced is first added to the trash by a second name. If the command is killed before it
replaces the journal, the trash has a run that is also in its place. Such a run is not listed, and removed later.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from tachograph._base.files import UnsafeFileError, add_name, make_folder, move_folder, read_small, replace_file
from tachograph._base.typed import decode_json
from tachograph.catalog._annotations import author
from tachograph.catalog._catalog import OWN_FOLDER
from tachograph.catalog._ended import why_not_ended
from tachograph.exceptions import RunNotFoundError, TachographError, did_you_mean
from tachograph.journal import RunFolder, find_below, lock_run_folder, stat_journal
from tachograph.reader.captured_code import remove_unused_code_files
from tachograph.records import to_json

__all__ = [
    "TrashError",
    "TrashedRun",
    "empty_trash",
    "list_trash",
    "restore_run",
    "tidy_trash",
    "trash_folder",
    "trash_journal",
    "trash_run",
]

_ID = re.compile(r"[0-9a-f]{8,40}")
_DELETING = "deleting-"
_UNFINISHED_S = 3_600.0
"""After this time, an unfinished deletion was left by a command that was killed."""


class TrashError(TachographError):
    """A run cannot be removed or restored; the message says what to do."""


class TrashedRun(msgspec.Struct, kw_only=True, frozen=True):
    """The manifest of a run in the trash."""

    id: str
    name: str
    """Its name before it was removed, relative to the log folder."""
    removed: float
    by: str = ""
    size_bytes: int = 0


def trash_run(log_dir: str, name: str, *, is_forced: bool = False, by: str = "") -> TrashedRun:
    """Move a run to the trash.

    Args:
        log_dir: the log folder.
        name: the run, relative to the log folder.
        is_forced: also if it is unknown whether the run is still being recorded.
        by: who removes it; by default the user of this process.

    Raises:
        RunNotFoundError: if there is no such run.
        TrashError: if it is being recorded or cannot be moved.
    """
    folder = find_below(log_dir, name)
    if folder is None:
        raise RunNotFoundError(f"no run {name!r} in {log_dir!r}")
    root = Path(log_dir)
    if reason := why_not_ended(folder, name, is_forced=is_forced):
        raise TrashError(reason)
    run = _new_entry(name, stat_journal(folder.journal).st_size, by)
    trash = root / OWN_FOLDER / "trash"
    try:
        with lock_run_folder(folder) as is_ours:
            if not is_ours:
                raise TrashError(f"{name!r} is still being recorded; stop it first")
            make_folder(trash, below=root)
            manifest = trash / f"{run.id}.json"
            replace_file(manifest, to_json(msgspec.to_builtins(run)).encode(), below=root)
            move_folder(folder.path, trash / run.id, below=root)
    except OSError as error:
        raise TrashError(_explain(f"cannot remove {name!r}", error)) from error
    return run


def trash_journal(log_dir: str, name: str, journal: Path) -> TrashedRun:
    """Put a journal that is about to be replaced into the trash, as a run with nothing else.

    Raises:
        OSError: if it cannot be put there.
    """
    root = Path(log_dir)
    trash = root / OWN_FOLDER / "trash"
    run = _new_entry(name, journal.stat().st_size)
    unfinished_path = trash / f"{_DELETING}{run.id}"
    make_folder(unfinished_path, below=root)
    add_name(journal, unfinished_path / journal.name, below=root)
    replace_file(trash / f"{run.id}.json", to_json(msgspec.to_builtins(run)).encode(), below=root)
    move_folder(unfinished_path, trash / run.id, below=root)
    return run


def _new_entry(name: str, size_bytes: int, by: str = "") -> TrashedRun:
    return TrashedRun(
        id=f"{time.time_ns() // 1000:x}{secrets.token_hex(4)}",
        name=name,
        removed=time.time(),
        by=by or author(),
        size_bytes=size_bytes,
    )


def list_trash(log_dir: str) -> list[TrashedRun]:
    """Return the runs in the trash, latest first."""
    trash = Path(log_dir, OWN_FOLDER, "trash")
    trashed_runs = [run for run in _manifests(trash) if (trash / run.id).is_dir() and not _is_in_place(log_dir, run)]
    return sorted(trashed_runs, key=lambda run: (-run.removed, run.id))


def _is_in_place(log_dir: str, run: TrashedRun) -> bool:
    """Return whether the journal of a run in the trash is also the journal of the run that it comes from."""
    folder = find_below(log_dir, run.name)
    if folder is None:
        return False
    with contextlib.suppress(OSError):
        trashed_journal = stat_journal(trash_folder(log_dir, run).journal)
        return os.path.samestat(trashed_journal, stat_journal(folder.journal))
    return False


def tidy_trash(log_dir: str) -> int:
    """Remove what killed commands left in the trash; return the number of runs that are in their place anyway."""
    root = Path(log_dir)
    trash = root / OWN_FOLDER / "trash"
    num_removed = 0
    with contextlib.suppress(OSError):  # such as a read-only folder
        for run in list(_manifests(trash)):
            folder = find_below(log_dir, run.name) if _is_in_place(log_dir, run) else None
            if folder is None:
                continue
            with lock_run_folder(folder) as is_ours:  # else it may be replaced just now
                if is_ours and _is_in_place(log_dir, run):
                    move_folder(trash / run.id, trash / f"{_DELETING}{run.id}", below=root)
                    _unlink(trash / f"{run.id}.json")
                    shutil.rmtree(trash / f"{_DELETING}{run.id}")
                    num_removed += 1
        _remove_unfinished(trash, min_age_s=_UNFINISHED_S)
    return num_removed


def _remove_unfinished(trash: Path, *, min_age_s: float = 0.0) -> None:
    """Finish deleting what earlier commands did not."""
    for entry in os.listdir(trash) if trash.is_dir() and not trash.is_symlink() else ():
        path = trash / entry
        if entry.startswith(_DELETING) and not path.is_symlink():
            renamed_at = path.stat().st_ctime
            if max(0.0, time.time() - renamed_at) >= min_age_s:
                shutil.rmtree(path)


def restore_run(log_dir: str, name: str) -> str:
    """Move a run back from the trash, by its name or its id; of several with the same name, the one removed last.

    Returns:
        Its name: the old one, or a numbered one if that is taken.

    Raises:
        RunNotFoundError: if there is no such run in the trash.
        TrashError: if it cannot be moved.
    """
    runs = list_trash(log_dir)
    run = next((run for run in runs if name in {run.name, run.id}), None)
    if run is None:
        hint = did_you_mean(name, [run.name for run in runs]) or "; list them with: tacho trash list"
        raise RunNotFoundError(f"no run {name!r} in the trash of {log_dir!r}{hint}")
    root = Path(log_dir)
    trash = root / OWN_FOLDER / "trash"
    for number in itertools.count(1):
        restored_name = run.name if number == 1 else f"{run.name}-{number}"
        try:
            if "/" in restored_name:
                make_folder(root.joinpath(*restored_name.split("/")[:-1]), below=root)
            move_folder(trash / run.id, root.joinpath(*restored_name.split("/")), below=root)
        except FileExistsError:
            continue
        except OSError as error:
            if error.errno == errno.ENOTEMPTY:  # a run of this name has just been started
                continue
            raise TrashError(_explain(f"cannot restore {run.name!r}", error)) from error
        _unlink(trash / f"{run.id}.json")
        return restored_name
    raise AssertionError("unreachable")


def empty_trash(log_dir: str, *, older_than_s: float = 0.0) -> list[TrashedRun]:
    """Delete runs in the trash for good, those removed at least `older_than_s` ago; return them.

    Raises:
        TrashError: if a run cannot be deleted.
    """
    root = Path(log_dir)
    trash = root / OWN_FOLDER / "trash"
    limit = time.time() - older_than_s
    tidy_trash(log_dir)
    deleted_runs = []
    try:
        for run in list_trash(log_dir):
            if run.removed <= limit:
                move_folder(trash / run.id, trash / f"{_DELETING}{run.id}", below=root)
                _unlink(trash / f"{run.id}.json")
                deleted_runs.append(run)
        # Also deletions that an earlier command did not finish.
        _remove_unfinished(trash)
        for run in _manifests(trash):
            # A manifest is written a moment before its run arrives.
            if not (trash / run.id).exists() and run.removed < time.time() - _UNFINISHED_S:
                _unlink(trash / f"{run.id}.json")
    except OSError as error:
        raise TrashError(_explain("cannot empty the trash", error)) from error
    remove_unused_code_files(log_dir)
    return deleted_runs


def _manifests(trash: Path) -> Iterator[TrashedRun]:
    try:
        names = os.listdir(trash)
    except OSError:
        return
    for name in names:
        if not name.endswith(".json") or not _ID.fullmatch(name[:-5]):
            continue
        with contextlib.suppress(OSError, msgspec.MsgspecError):
            run = decode_json(read_small(trash / name, 64 << 10), TrashedRun)
            parts = run.name.split("/")
            is_inside = all(part and not part.startswith(".") and "\0" not in part for part in parts)
            if run.id == name[:-5] and is_inside:
                yield run


def _unlink(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()


def _explain(what: str, error: OSError) -> str:
    if error.errno == errno.EXDEV:
        return f"{what}: it lies on another file system; pass the folder that contains it as --log-dir"
    remedy = "" if isinstance(error, UnsafeFileError) else "; check the permissions of the log folder"
    return f"{what}: {error if isinstance(error, UnsafeFileError) else error.strerror} ({error.filename}){remedy}"


def trash_folder(log_dir: str, run: TrashedRun) -> RunFolder:
    """Return the folder of a run in the trash."""
    return RunFolder(Path(log_dir, OWN_FOLDER, "trash", run.id))
