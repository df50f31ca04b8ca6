"""The actions of `tacho prune` on one run: what each would free, and doing it.

Each action does its work under temporary names and takes the lock of the run only to put the result in place, so a
resume is hardly ever kept waiting. Killed at any moment, it has either happened or not.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from tachograph.catalog._ended import why_not_ended
from tachograph.catalog._media import (
    MediaFilter,
    drop_media,
    list_loose_media,
    list_removable_media,
    pack_media,
    parse_media_filter,
)
from tachograph.catalog._merge_ranks import (
    MergePlan,
    WindowMerger,
    list_mergeable_journals,
    merge_rank_windows,
    plan_merge,
)
from tachograph.catalog._summary import journal_key, load_summary, save_summary
from tachograph.catalog._thin import StepThinner, thin_run
from tachograph.catalog._trash import trash_run
from tachograph.catalog._usage import disk_usage
from tachograph.exceptions import TachographError
from tachograph.journal import (
    RunFolder,
    RunState,
    compress_journal,
    current_state,
    journal_size,
    lock_run_folder,
    open_journal,
    read_destination,
    stat_journal,
)
from tachograph.reader import list_packed_media, media_pack, media_path, media_size, read_ranks

__all__ = ["ACTIONS", "ActionError", "Freed", "RunAction", "parse_action"]

ACTIONS: dict[str, str] = {
    "drop_rebuildable": "delete what can be made again: cached columns, `metrics.csv`, files of the TensorBoard sink",
    "gzip": "compress the journals",
    "merge_ranks": "merge old windows of ranks other than 0, to a minute or ten; not in the last hour or around alerts",
    "drop_traces": "delete traces of torch's profiler and stacks",
    "pack_media": "pack pictures and other media into one file, `media.zip`",
    "thin_media": "replace pictures by thumbnails, except at the first and the newest step of each name",
    "drop_media": "delete pictures, audio, video and files, except at these steps; tables and texts stay",
    "thin:N": "replace single steps by windows of N steps; the old journal goes to the trash",
    "trash": "move the run to the trash",
}
_SAMPLE_BYTES = 1 << 20
_MIN_WINDOW, _MAX_WINDOW = 2, 1_000_000


_LOSSY_ACTIONS = {"merge_ranks", "drop_traces", "thin_media", "drop_media", "thin", "trash"}
"""Actions that a run which is marked for sending has to wait for."""


class ActionError(TachographError):
    """An action is unknown or cannot be done; the message says what to do."""


class Freed(NamedTuple):
    """The space that an action freed or would free."""

    num_bytes: int
    num_files: int


class RunAction(NamedTuple):
    """An action, such as ``gzip``, ``thin:100`` or ``drop_media:kind=video``."""

    name: str
    window: int = 0
    """The number of steps in a window, for ``thin``."""
    media_filter: MediaFilter = MediaFilter()
    """For ``thin_media`` and ``drop_media``."""

    def __str__(self) -> str:
        option = str(self.window or self.media_filter)
        return f"{self.name}:{option}" if option else self.name

    @property
    def frees_later(self) -> bool:
        """Whether the space is free only once the trash is emptied."""
        return self.name in {"trash", "thin"}

    def why_unsent(self, folder: RunFolder, name: str) -> str:
        """Return why the action would lose what the server of the run does not have yet; empty if it would not."""
        if self.name not in _LOSSY_ACTIONS:
            return ""
        from tachograph.remote import read_send_state, unsent_bytes  # only here: lists do not need it

        destination = read_destination(folder)
        state = read_send_state(folder) if destination is not None else None
        if destination is None or (state is not None and state.is_gone):
            return ""
        num_bytes = unsent_bytes(folder, state)
        if not num_bytes:
            return ""
        command = destination.sync_command(name)
        return f"{num_bytes:,} bytes of {name!r} were not sent to its server yet: {command}; or pass --force"

    def estimate(self, folder: RunFolder) -> Freed:
        """Return about how much space the action would free."""
        if self.name == "gzip":
            samples = [_sample_gzip(path) for path in _plain_journals(folder)]
            return Freed(sum(samples), len(samples))
        if self.name == "merge_ranks":
            return _sample_merge(folder)
        if self.name == "thin":
            return Freed(_sample_thin(folder, self.window), 1)
        if self.name == "trash":
            return Freed(sum(disk_usage(folder).values()), 1)
        if self.name == "pack_media":
            return _packing_gain(folder)
        if self.name in {"thin_media", "drop_media"}:
            is_thinned = self.name == "thin_media"
            files = list_removable_media(folder, is_thinned=is_thinned, media_filter=self.media_filter)
            return Freed(sum(media_size(folder, *file) or 0 for file in files), len(files))
        return _sum_files(_rebuildable(folder) if self.name == "drop_rebuildable" else _traces(folder))

    def apply(self, log_dir: str, folder: RunFolder, name: str, *, is_forced: bool = False) -> Freed:
        """Do it.

        Args:
            log_dir: the log folder.
            folder: the run.
            name: the run, relative to the log folder.
            is_forced: also if it is unknown whether the run is still being recorded.

        Raises:
            ActionError: if it cannot be done now.
            OSError: if a file cannot be read or written.
        """
        if reason := why_not_ended(folder, name, is_forced=is_forced):
            raise ActionError(reason)
        if not is_forced and (reason := self.why_unsent(folder, name)):
            raise ActionError(reason)
        if self.name == "trash":
            estimate = self.estimate(folder)
            trash_run(log_dir, name, is_forced=is_forced)
            return estimate
        if self.name == "gzip":
            return _gzip(folder, name, is_forced=is_forced)
        if self.name == "merge_ranks":
            return _merge_ranks(folder, name, is_forced=is_forced)
        if self.name == "thin":
            return _thin(log_dir, folder, name, self.window)
        if self.name == "pack_media":
            return _pack_media(folder, name, is_forced=is_forced)
        if self.name in {"thin_media", "drop_media"}:
            _check_sinks(folder, name)
            is_thinned = self.name == "thin_media"
            return Freed(
                *drop_media(
                    folder,
                    is_thinned=is_thinned,
                    publishing=lambda: _allowing(folder, name, is_forced=is_forced),
                    media_filter=self.media_filter,
                )
            )
        with _run_lock(folder, name):
            return _delete(folder, _rebuildable(folder) if self.name == "drop_rebuildable" else _traces(folder))


def parse_action(text: object) -> RunAction:
    """Return the action of a text such as ``gzip``, ``thin:100`` or ``drop_media:kind=video:older=30d``.

    Raises:
        ActionError: if there is no such action.
    """
    name, _, option = str(text).strip().partition(":")
    if name == "thin" and option.isdecimal() and _MIN_WINDOW <= int(option) <= _MAX_WINDOW:
        return RunAction(name, int(option))
    if name in {"thin_media", "drop_media"} and option:
        try:
            media_filter = parse_media_filter(option)
        except ValueError as error:
            raise ActionError(f"{name}: {error}") from error
        if name == "thin_media" and media_filter.kinds not in {(), ("image",)}:
            raise ActionError("thin_media: only pictures can be thinned; use drop_media for other kinds")
        return RunAction(name, media_filter=media_filter)
    if option or name not in ACTIONS:
        action_names = ", ".join(ACTIONS)
        raise ActionError(
            f"unknown action {str(text)[:100]!r}; expected one of: {action_names} "
            "(with an option, as in thin:100 or drop_media:kind=video)"
        )
    return RunAction(name)


# Deleting ------------------------------------------------------------------------------------------------------------


def _rebuildable(folder: RunFolder) -> list[Path]:
    """Return the files that can be made again from the journal and the media."""
    paths = _files_in(folder.private / "cache")
    media = {path.stem for path in _files_in(folder.media)} | {Path(entry).stem for entry in list_packed_media(folder)}
    # A thumbnail of a picture that the quota has removed is all that is left of it.
    paths += [path for path in _files_in(folder.private / "thumbs") if path.name.partition("-")[0] in media]
    paths += [path for path in (folder.csv, folder.csv_cursor) if path.is_file() and not path.is_symlink()]
    # Event files are ours if our sink has written the run, and only then `tacho sync` writes them again.
    events, cursor = folder.path / "tensorboard", folder.private / "sink-tensorboard.json"
    event_files = _files_in(events)
    if cursor.is_file() and event_files and all("tfevents" in path.name for path in event_files):
        paths += [*event_files, cursor]
    return paths


def _traces(folder: RunFolder) -> list[Path]:
    stacks = [path for path in folder.path.glob("stacks-*.txt") if re.fullmatch(r"stacks-[\w.-]+\.txt", path.name)]
    for parent in (folder.ranks, folder.private / "ranks"):
        stacks += [path for path in _files_in(parent) if re.fullmatch(r"\d{5,}\.stacks\.txt", path.name)]
    return [*_files_in(folder.traces), *(path for path in stacks if path.is_file() and not path.is_symlink())]


def _files_in(folder: Path) -> list[Path]:
    if folder.is_symlink() or folder.parent.is_symlink():
        return []
    return sorted(Path(root, name) for root, _, names in os.walk(folder) for name in names)


def _sum_files(paths: Iterable[Path]) -> Freed:
    sizes = []
    for path in paths:
        with contextlib.suppress(OSError):
            sizes.append(path.lstat().st_size)
    return Freed(sum(sizes), len(sizes))


def _delete(folder: RunFolder, paths: list[Path]) -> Freed:
    freed_space = _sum_files(paths)
    for path in paths:
        path.unlink(missing_ok=True)
    for parent in {path.parent for path in paths} - {folder.path, folder.private}:
        with contextlib.suppress(OSError):  # not empty
            parent.rmdir()
    return freed_space


# Media ---------------------------------------------------------------------------------------------------------------


def _packing_gain(folder: RunFolder) -> Freed:
    """Return the blocks that the files of the media take beyond their sizes, and the number of files."""
    num_bytes = num_files = 0
    for file in list_loose_media(folder):
        with contextlib.suppress(OSError):
            status = media_path(folder, *file).lstat()
            num_bytes += max(0, getattr(status, "st_blocks", 0) * 512 - status.st_size)
            num_files += 1
    return Freed(num_bytes, num_files)


def _pack_media(folder: RunFolder, name: str, *, is_forced: bool) -> Freed:
    gain = _packing_gain(folder)
    if not gain.num_files:
        return Freed(0, 0)
    size_bytes = sum(media_size(folder, *file) or 0 for file in list_loose_media(folder))
    with contextlib.suppress(FileNotFoundError):
        size_bytes += media_pack(folder).stat().st_size
    _check_space(folder.journal, size_bytes)
    num_packed = pack_media(folder, publishing=lambda: _allowing(folder, name, is_forced=is_forced))
    return Freed(gain.num_bytes if num_packed else 0, num_packed)


# Journals ------------------------------------------------------------------------------------------------------------


def _plain_journals(folder: RunFolder) -> list[Path]:
    ranks = [path for path in _files_in(folder.ranks) if re.fullmatch(r"(host-)?\d{5,9}\.jsonl", path.name)]
    return [*ranks, *([folder.journal] if folder.journal.is_file() else [])]


def _sample_gzip(path: Path) -> int:
    """Return about how many bytes compressing a file would free, from two parts of it."""
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        sample = file.read(_SAMPLE_BYTES)
        if size > 2 * _SAMPLE_BYTES:
            file.seek(size // 2)
            sample += file.read(_SAMPLE_BYTES)
    return max(0, size - round(size * len(zlib.compress(sample, 6)) / len(sample))) if sample else 0


def _gzip(folder: RunFolder, name: str, *, is_forced: bool) -> Freed:
    _check_sinks(folder, name)
    if any(rank.rank and rank.state is RunState.RUNNING for rank in read_ranks(folder)):
        raise ActionError(f"a rank of {name!r} is still being recorded")
    old_key = journal_key(stat_journal(folder.journal))
    num_freed_bytes, num_files = 0, 0
    for path in _plain_journals(folder):
        _check_space(path, path.stat().st_size // 2)
        sizes = compress_journal(
            path, below=folder.path, publishing=lambda: _allowing(folder, name, is_forced=is_forced)
        )
        if sizes is not None:
            num_freed_bytes, num_files = num_freed_bytes + sizes[0] - sizes[1], num_files + 1
    # The summary belongs to the size of the file, but its content is still right.
    summary = load_summary(folder, old_key)
    if summary is not None and num_files:
        save_summary(folder, msgspec.structs.replace(summary, journal=journal_key(stat_journal(folder.journal))))
    return Freed(num_freed_bytes, num_files)


def _sample_merge(folder: RunFolder) -> Freed:
    """Return about how many bytes merging would free: the share of windows of rank 0 that it would remove.

    None, if it would remove nothing from parts of the first, the last and the largest file.
    """
    plan = plan_merge(folder)
    journals = list_mergeable_journals(folder) if plan is not None and plan.remaining_share < 1 else []
    if plan is None or not journals:
        return Freed(0, 0)
    num_bytes = sum(stat_journal(journal.path).st_size for journal in journals)
    largest = max(journals, key=lambda journal: journal_size(journal.path))
    num_files = sum(_merged_share(journal.path, plan) < 1 for journal in (journals[0], journals[-1], largest))
    return Freed(round(num_bytes * (1 - plan.remaining_share)), len(journals)) if num_files else Freed(0, 0)


def _merged_share(path: Path, plan: MergePlan) -> float:
    """Return how much of a file would be left, as a share of two parts of it."""
    size = journal_size(path)
    num_read = num_left = 0
    with open_journal(path) as file:
        for offset in {0, size // 2}:
            file.seek(offset)
            merger = WindowMerger(plan)
            for line in file.readlines(_SAMPLE_BYTES):
                num_read += len(line)
                num_left += sum(map(len, merger.add(line)))
            num_left += sum(map(len, merger.finish()))
    return num_left / num_read if num_read else 1.0


def _merge_ranks(folder: RunFolder, name: str, *, is_forced: bool) -> Freed:
    if current_state(folder) in {RunState.CRASHED, RunState.STALE}:
        raise ActionError(f"{name!r} has no end, so it may be resumed; only windows of ended runs are merged")
    if any(rank.rank and rank.state is RunState.RUNNING for rank in read_ranks(folder)):
        raise ActionError(f"a rank of {name!r} is still being recorded")
    _check_sinks(folder, name)
    _check_space(folder.journal, max((journal_size(each.path) for each in list_mergeable_journals(folder)), default=0))
    return Freed(*merge_rank_windows(folder, lambda: _allowing(folder, name, is_forced=is_forced)))


def _sample_thin(folder: RunFolder, window: int) -> int:
    """Return about how many bytes thinning would free, from the first part of the journal."""
    thinner = StepThinner(window)
    num_kept = num_read = 0
    with open_journal(folder.journal) as file:
        while num_read < _SAMPLE_BYTES and (line := file.readline(_SAMPLE_BYTES)):
            num_read += len(line)
            num_kept += sum(len(thinned_line) + 1 for thinned_line in thinner.add(line.rstrip(b"\n")))
    num_kept += sum(len(thinned_line) + 1 for thinned_line in thinner.finish())
    size = stat_journal(folder.journal).st_size
    return max(0, size - round(size * num_kept / num_read)) if num_read else 0


def _thin(log_dir: str, folder: RunFolder, name: str, window: int) -> Freed:
    if current_state(folder) in {RunState.CRASHED, RunState.STALE}:
        raise ActionError(f"{name!r} has no end, so it may be resumed; only ended runs are thinned")
    _check_sinks(folder, name)
    _check_space(folder.journal, stat_journal(folder.journal).st_size)
    sizes = thin_run(folder, log_dir, name, window)
    return Freed(0, 0) if sizes is None else Freed(max(0, sizes[0] - sizes[1]), 1)


def _check_sinks(folder: RunFolder, name: str) -> None:
    """Raise if a sink has not accepted every record: its cursor is needed as it is."""
    from tachograph.sinks import read_lags  # only here: lists do not need it

    for lag in read_lags(folder):
        raise ActionError(
            f"the sink {lag.sink!r} of {name!r} has not received {lag.num_records} records; send them first: "
            f"tacho sync {name} --sink {lag.sink}"
        )


def _check_space(path: Path, num_bytes: int) -> None:
    free = shutil.disk_usage(path.parent).free
    if free < num_bytes + (1 << 20):
        raise ActionError(f"{str(path.parent)!r} has {free / 1e6:,.0f} MB free, too little for a new file")


@contextlib.contextmanager
def _allowing(folder: RunFolder, name: str, *, is_forced: bool) -> Iterator[bool]:
    with lock_run_folder(folder) as is_ours:
        yield is_ours and why_not_ended(folder, name, is_forced=is_forced) is None


@contextlib.contextmanager
def _run_lock(folder: RunFolder, name: str) -> Iterator[None]:
    with lock_run_folder(folder) as is_ours:
        if not is_ours:
            raise ActionError(f"{name!r} is still being recorded; stop it first")
        yield
