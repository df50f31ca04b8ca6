"""The runs below one or more log folders: found on disk, and resolved from the ids that requests and commands name.

A run lies anywhere below its log folder, and its name is the path from there: ``run-3`` or ``sweep/run-3``. Folders
inside of a run are not searched, and links are not followed further than to a run, because they may lead back.

With several log folders two runs may have the same name. The *id* of a run is its name if no other run has it, else the
name with the label of its log folder in front: ``june:run-3``. Labels depend on the paths of the folders only, so ids
are the same after a restart.
"""

from __future__ import annotations

import os
import re
import stat
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from tachograph._base.guard import faults
from tachograph.exceptions import RunNotFoundError
from tachograph.journal._files import stat_journal
from tachograph.journal._folder import RunFolder

__all__ = [
    "MAX_RUN_DEPTH",
    "FoundRun",
    "LogFolders",
    "SubFolder",
    "find_below",
    "find_run_folders",
    "is_linked_out",
    "list_sub_folders",
]

MAX_RUN_DEPTH = 6
"""How many folders deep runs are looked for below a log folder."""
_MAX_OTHER_FOLDERS = 20_000
"""The number of folders without a journal that are searched, in case of a log folder that contains everything."""
_FOLDER_NAME = re.compile(r"(?!\.)[^/\\\x00\ud800-\udfff]{1,255}", re.DOTALL)


class FoundRun(NamedTuple):
    """A run on disk."""

    id: str
    """Identifies the run among the runs of all log folders."""
    log_dir: str
    name: str
    """The path of the run relative to its log folder."""
    path: str
    journal: os.stat_result


class LogFolders:
    """One or more log folders. A folder that is given twice, or lies in another one, counts once."""

    def __init__(self, *log_dirs: str | os.PathLike[str]) -> None:
        self.log_dirs = _without_nested([os.fspath(log_dir) for log_dir in log_dirs])
        self.labels = _labels(self.log_dirs)
        """The label of each log folder; if there is only one, it has none."""

    def find(self) -> list[FoundRun]:
        """Return all runs, each once."""
        runs = [
            FoundRun(name, log_dir, name, path, journal)
            for log_dir in self.log_dirs
            for name, path, journal in find_run_folders(log_dir)
        ]
        if not self.labels:
            return runs
        counts = Counter(run.name for run in runs)
        return [run._replace(id=self.id_among(run.log_dir, run.name, is_unique=counts[run.name] == 1)) for run in runs]

    def resolve(self, run_id: str) -> tuple[str, str, RunFolder] | None:
        """Return log folder, name and folder of a run, or None if there is none; never one outside of the folders.

        Raises:
            RunNotFoundError: if several log folders have a run of this name; the message gives their ids.
        """
        label, colon, name_after_label = run_id.partition(":")
        labelled_dirs = [log_dir for log_dir, log_dir_label in self.labels.items() if colon and log_dir_label == label]
        name = name_after_label if labelled_dirs else run_id
        matches = [
            (log_dir, name, folder)
            for log_dir in labelled_dirs or self.log_dirs
            if (folder := find_below(log_dir, name)) is not None
        ]
        if len(matches) > 1:
            ids = " or ".join(repr(f"{self.labels[log_dir]}:{name}") for log_dir, _, _ in matches)
            raise RunNotFoundError(f"several log folders have a run {name!r}; use {ids}")
        return matches[0] if matches else None

    def id_of(self, log_dir: str, name: str) -> str:
        """Return the id of a run that exists."""
        if not self.labels:
            return name
        others = (other for other in self.log_dirs if other != log_dir)
        return self.id_among(log_dir, name, is_unique=not any(find_below(other, name) for other in others))

    def id_among(self, log_dir: str, name: str, *, is_unique: bool) -> str:
        """Return the id of a run, given whether no other log folder has a run of its name."""
        # A name that looks like an id with a label needs its label, too.
        has_label = name.partition(":")[0] in self.labels.values() and ":" in name
        return name if is_unique and not has_label else f"{self.labels[log_dir]}:{name}"


class SubFolder(NamedTuple):
    """A folder in a folder: a run, or a folder that may contain runs."""

    name: str
    path: str
    inode: int


def list_sub_folders(folder: str) -> list[SubFolder]:
    """Return the folders in a folder that may be runs or contain runs, by name.

    Raises:
        OSError: if the folder cannot be read.
    """
    with os.scandir(folder) as entries:
        return sorted(
            SubFolder(entry.name, f"{folder}/{entry.name}", entry.inode()) for entry in entries if _may_be_run(entry)
        )


def find_run_folders(
    log_dir: str, sub_folders_of: Callable[[str], Iterable[SubFolder]] = list_sub_folders
) -> Iterator[tuple[str, str, os.stat_result]]:
    """Yield name, path and status of the journal of each run below a folder, also in nested folders.

    Args:
        log_dir: the folder.
        sub_folders_of: returns the folders in a folder that are looked at.
    """
    folders_to_scan = [(log_dir, "", 0)]
    num_other_folders = 0
    while folders_to_scan:
        folder, prefix, depth = folders_to_scan.pop()
        try:
            sub_folders = sub_folders_of(folder)
        except faults(OSError, ValueError):
            continue
        for name, path, _ in sub_folders:
            try:
                journal = stat_journal(path + "/metrics.jsonl")
            except faults(OSError, ValueError):
                # A folder of runs, perhaps.
                num_other_folders += 1
                if depth < MAX_RUN_DEPTH and num_other_folders <= _MAX_OTHER_FOLDERS and not os.path.islink(path):
                    folders_to_scan.append((path, f"{prefix}{name}/", depth + 1))
                continue
            if stat.S_ISREG(journal.st_mode):
                yield f"{prefix}{name}", path, journal


def find_below(log_dir: str, name: str) -> RunFolder | None:
    """Return the run of a name that `find_run_folders` gave, or None; never one outside of the folder."""
    parts = name.split("/")
    if not 1 <= len(parts) <= MAX_RUN_DEPTH + 1 or not all(map(_is_folder_name, parts)):
        return None
    folder = RunFolder(Path(log_dir, *parts))
    try:
        for length in range(1, len(parts)):
            above = Path(log_dir, *parts[:length])
            if above.is_symlink() or _has_journal(above):
                return None
        is_run = stat.S_ISREG(stat_journal(folder.journal).st_mode)
    except faults(OSError, ValueError):
        return None
    return folder if is_run and not is_linked_out(log_dir, folder) else None


def _has_journal(path: Path) -> bool:
    try:
        stat_journal(path / "metrics.jsonl")
    except faults(OSError, ValueError):
        return False
    return True


def is_linked_out(log_dir: str, folder: RunFolder) -> bool:
    """Return whether a run, or a file of it that is read or written, is a link to somewhere outside of a log folder."""
    try:
        journals = (folder.journal, folder.compressed_journal)
        paths = (folder.path, *journals, folder.private, folder.cache, folder.control)
        links = [path for path in paths if os.path.islink(path)]
        if not links:
            return False
        root = Path(log_dir).resolve()
        return not all(path.resolve(strict=True).is_relative_to(root) for path in links)
    except faults(OSError, RuntimeError, ValueError):
        return True


def _may_be_run(entry: os.DirEntry[str]) -> bool:
    try:
        return _is_folder_name(entry.name) and entry.is_dir()
    except faults(OSError):
        return False


def _is_folder_name(name: str) -> bool:
    """Return whether a text is a folder name that is not hidden and that JSON can represent."""
    return _FOLDER_NAME.fullmatch(name) is not None


def _without_nested(log_dirs: list[str]) -> list[str]:
    real_paths = [os.path.realpath(log_dir) for log_dir in log_dirs]
    return [
        log_dir
        for index, log_dir in enumerate(log_dirs)
        if not any(
            real_paths[index].startswith(other.rstrip(os.sep) + os.sep)
            or (real_paths[index] == other and other_index < index)
            for other_index, other in enumerate(real_paths)
        )
    ]


def _labels(log_dirs: list[str]) -> dict[str, str]:
    """Return a label for each folder: its last name, or as many names as it takes to make labels unique."""
    if len(log_dirs) < 2:
        return {}
    parts = [[part for part in os.path.abspath(log_dir).split(os.sep) if part] for log_dir in log_dirs]
    labels: list[str] = []
    for length in range(1, max(map(len, parts), default=0) + 1):
        labels = [re.sub(r"[:/\\\x00-\x1f\ud800-\udfff]", "-", "-".join(part[-length:])) or "root" for part in parts]
        if len(set(labels)) == len(labels):
            break
    else:
        labels = [f"{label}-{number}" for number, label in enumerate(labels, 1)]
    return dict(zip(log_dirs, labels, strict=True))
