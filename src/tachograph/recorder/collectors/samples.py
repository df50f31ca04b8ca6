"""Takes the samples that a trainer writes into a folder of its own, as media of the run.

A thread looks at the folder once a second, and only lists it if its modification time has changed or a file is being
written. A file is taken when its size rested for two looks and its end is there, because most trainers write it in
place. The media thread then stores it without copying where the file system allows it.

Only files that were made since the process began are taken, by the time in their names. Baseline samples are older than
the run: trainers make them before the first step. A resumed run also takes the files that an earlier attempt was killed
before it could record; the journal says which ones it has.

The thread imports nothing: if the program forked meanwhile, the lock of the module would stay locked in the child.
"""

from __future__ import annotations

import os
import queue
import stat
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import psutil

from tachograph._base.files import open_to_read
from tachograph._base.guard import faults, guard, suppress
from tachograph._base.importing import import_on_first_use
from tachograph._base.reentrant import ReentrantEvent
from tachograph._base.threads import TelemetryThread
from tachograph.journal import JournalFollower, RunFolder
from tachograph.media import Audio, Image, Video
from tachograph.recorder.collectors.sample_folders import (
    CONFIG_FILE_KEYS,
    SampleFolder,
    SampleName,
    find_sample_folders,
)
from tachograph.records import decode

__all__ = ["SampleWatcher"]

NAME = "samples"
_INTERVAL_S = 1.0
_SHARE_OF_TIME = 0.02
_LAST_WAIT_S = 0.2
_CLOSE_S = 2.0
_MAX_INCOMPLETE_S = 60.0
_MAX_FOLDERS = 16
_MAX_FILES = 20_000
_MAX_ENTRIES = 500_000
_MAX_ITEMS = 64
_END_BYTES = 64
_MAX_BOXES = 10_000
_CLOCK_SLACK_S = 3.0

_finished_files: set[str] = set()
"""Files that an earlier run of this process has taken."""


class _SampledRun(Protocol):
    """The run, as far as samples need it."""

    folder: RunFolder | None

    @property
    def resumed(self) -> bool: ...

    def _add_media(self, media: dict[str, Any], step: Any) -> None: ...


class _GrowingFile:
    """A file that may still be written to."""

    __slots__ = ("modified_ns", "seen_at_s", "size_bytes")

    def __init__(self, size_bytes: int, modified_ns: int, seen_at_s: float) -> None:
        self.size_bytes = size_bytes
        self.modified_ns = modified_ns
        self.seen_at_s = seen_at_s


class _FolderState:
    """A folder, and the files that were seen in it."""

    def __init__(self, folder: SampleFolder) -> None:
        self.folder = folder
        self.modified_ns = -1
        self.listed_at_s = 0.0
        self.growing: dict[str, _GrowingFile] = {}
        self.taken: set[str] = set()


class SampleWatcher:
    """A collector that watches the folders that the config of a run names."""

    def __init__(self, run: _SampledRun) -> None:
        self._run = run
        self._config: dict[str, Any] = {}
        self._configs: queue.SimpleQueue[tuple[dict[str, Any], str]] = queue.SimpleQueue()
        self._folders: dict[str, _FolderState] = {}
        self._since_s: float | None = None
        self._recorded_names: set[str] = set()
        self._stop = ReentrantEvent()
        self._has_ended = ReentrantEvent()
        self._thread: TelemetryThread | None = None

    def add_config(self, config: Mapping[str, Any]) -> None:
        """Look for folders of samples in a new part of the config. The thread does so; this returns at once."""
        self._config = {**self._config, **config}
        if not self._config.keys().isdisjoint(CONFIG_FILE_KEYS):
            import_on_first_use("yaml")
            with suppress(ImportError):
                import yaml  # noqa: F401 - for the thread
        with suppress(OSError):  # the working folder was deleted
            self._configs.put((self._config, os.getcwd()))
        if self._thread is None and not self._stop.is_set():
            self._thread = TelemetryThread(self._work, name="tachograph-samples")
            try:
                self._thread.start()
            except RuntimeError:  # the interpreter is shutting down, or has no more threads
                self._thread = None

    def collect(self) -> None:
        """Do nothing: a thread of its own looks at the folders, which may be on a slow disk."""

    def close(self) -> None:
        """Take the last files: the trainer has finished."""
        self._stop.set()
        if self._thread is None or threading.current_thread() is self._thread:
            return
        if self._has_ended.wait(_CLOSE_S):  # otherwise it waits for the disk
            self.look()
            if any(state.growing for state in self._folders.values()):
                time.sleep(_LAST_WAIT_S)
                self.look(is_last=True)
        _finished_files.update(
            os.path.join(path, name) for path, state in self._folders.items() for name in state.taken
        )

    def forget(self) -> None:
        """In a forked child: leave the folders to the parent."""
        self._stop.set()
        self._thread = None

    def _work(self) -> None:
        wait_s = 0.0
        try:
            while not self._stop.wait(wait_s):
                started_at_s = time.monotonic()
                with guard("looking for samples"):
                    self.look()
                wait_s = max(_INTERVAL_S, (time.monotonic() - started_at_s) / _SHARE_OF_TIME)
        except BaseException as fault:  # noqa: BLE001 - in strict mode; the test that caused it will see it
            guard.report("looking for samples", fault)
        finally:
            self._has_ended.set()

    def look(self, *, is_last: bool = False) -> None:
        """Take the files that are complete.

        Args:
            is_last: also take files that are not complete, because this is the last scan.
        """
        with suppress(queue.Empty):
            while True:
                config, working_folder = self._configs.get_nowait()
                for folder in find_sample_folders(config, working_folder):
                    state = self._folders.get(folder.path)
                    if state is not None:
                        state.folder = folder
                    elif len(self._folders) < _MAX_FOLDERS:
                        self._folders[folder.path] = _FolderState(folder)
        for state in self._folders.values():
            with suppress(OSError):  # it does not exist yet
                self._look_at(state, is_last)

    def _look_at(self, state: _FolderState, is_last: bool) -> None:
        path = state.folder.path
        modified_ns = os.stat(path).st_mtime_ns
        # A file that appears right after a listing may not change the time, which has the resolution of a tick.
        is_settled = state.listed_at_s - modified_ns / 1e9 > _CLOCK_SLACK_S
        if modified_ns == state.modified_ns and is_settled and not state.growing:
            return
        state.modified_ns, state.listed_at_s = modified_ns, time.time()
        if self._since_s is None:
            self._since_s = self._find_beginning()
        complete: list[tuple[SampleName, str]] = []
        names: set[str] = set()
        with os.scandir(path) as entries:
            for number, entry in enumerate(entries):
                if number >= _MAX_ENTRIES or len(state.taken) + len(complete) >= _MAX_FILES:
                    break
                name = entry.name
                if name in state.taken or name in self._recorded_names:
                    continue
                sample = state.folder.parse_name(name)
                if sample is None or sample.time_s < self._since_s or entry.path in _finished_files:
                    continue
                names.add(name)
                with suppress(OSError):
                    if self._is_complete(state, entry, is_last=is_last):
                        complete.append((sample, name))
        for name in state.growing.keys() - names:  # deleted, or renamed
            del state.growing[name]
        self._take(state, complete)

    def _is_complete(self, state: _FolderState, entry: os.DirEntry[str], *, is_last: bool) -> bool:
        status = entry.stat(follow_symlinks=False)
        if not stat.S_ISREG(status.st_mode):
            return False
        now_s = time.monotonic()
        growing = state.growing.get(entry.name)
        if growing is None or (growing.size_bytes, growing.modified_ns) != (status.st_size, status.st_mtime_ns):
            state.growing[entry.name] = _GrowingFile(status.st_size, status.st_mtime_ns, now_s)
            return is_last and status.st_size > 0
        return is_last or _has_end(entry.path) or now_s - growing.seen_at_s > _MAX_INCOMPLETE_S

    def _take(self, state: _FolderState, files: list[tuple[SampleName, str]]) -> None:
        """Log files; the ones of one step and kind together, unless a prompt was sampled twice."""
        group: list[tuple[SampleName, str]] = []
        for sample, name in sorted(files, key=lambda item: (item[0].time_s, item[0].prompt_index, item[1])):
            first = group[0][0] if group else sample
            is_same = (sample.step, sample.epoch, sample.kind) == (first.step, first.epoch, first.kind)
            if (
                not is_same
                or len(group) == _MAX_ITEMS
                or any(sample.prompt_index == other.prompt_index for other, _ in group)
            ):
                self._log(state, group)
                group = []
            group.append((sample, name))
        if group:
            self._log(state, group)

    def _log(self, state: _FolderState, group: list[tuple[SampleName, str]]) -> None:
        classes: dict[str, Callable[..., Any]] = {"image": Image, "video": Video, "audio": Audio}
        items = []
        for sample, name in sorted(group, key=lambda item: item[0].prompt_index):
            prompts = state.folder.prompts
            prompt = prompts[sample.prompt_index] if sample.prompt_index < len(prompts) else None
            facts = {**(prompt.meta if prompt is not None else {}), "prompt_id": sample.prompt_index}
            facts |= {} if sample.seed is None else {"seed": sample.seed}
            facts |= {} if sample.epoch is None else {"epoch": sample.epoch}
            caption = (prompt.text or None) if prompt is not None else None
            item = classes[sample.kind](os.path.join(state.folder.path, name), caption=caption)
            item.meta = facts  # they may have any names
            item.is_linked = True
            item.index = sample.prompt_index
            items.append(item)
            state.taken.add(name)
            state.growing.pop(name, None)
        first = group[0][0]
        name = NAME if first.kind == "image" else f"{NAME}/{first.kind}"
        self._run._add_media({name: items}, first.step)

    def _find_beginning(self) -> float:
        """Return the time from which on files belong to the run, and note the ones that the journal has."""
        began_at_s = psutil.Process().create_time() - 1  # names may have whole seconds
        if self._run.resumed and self._run.folder is not None:
            first_start_s, self._recorded_names = _read_journal(self._run.folder.journal)
            began_at_s = min(began_at_s, first_start_s)
        return began_at_s


def _read_journal(journal: Path) -> tuple[float, set[str]]:
    """Return the time of the first start of a run, and the names of the samples that it has."""
    first_start_s = time.time()
    names: set[str] = set()
    is_first = True
    with suppress(OSError):
        follower = JournalFollower(journal)
        while lines := follower.poll_lines():
            for line in lines.split(b"\n"):
                if not is_first and (b'"file_name"' not in line or b'"media"' not in line):
                    continue
                with suppress(Exception):
                    record = decode(line)
                    if is_first:
                        first_start_s, is_first = float(record["time"]), False
                    elif str(record.get("name", "")).startswith(NAME):
                        names.update(str(item.get("file_name")) for item in record["items"])
    return first_start_s, names


def _has_end(path: str) -> bool:
    """Return whether a file has the end that its format demands; True for a format without one."""
    try:
        with open_to_read(Path(path)) as file:
            head = file.read(12)
            size_bytes = file.seek(0, os.SEEK_END)
            if head[4:8] == b"ftyp":
                return _has_whole_boxes(file, size_bytes)
            file.seek(max(size_bytes - _END_BYTES, 0))
            end = file.read()
    except faults(OSError):
        return False
    if head.startswith(b"\x89PNG"):
        return b"IEND\xae\x42\x60\x82" in end
    if head.startswith(b"\xff\xd8\xff"):
        return b"\xff\xd9" in end
    if head.startswith(b"RIFF"):
        return int.from_bytes(head[4:8], "little") + 8 <= size_bytes
    return size_bytes > 0


def _has_whole_boxes(file: BinaryIO, size_bytes: int) -> bool:
    """Return whether an MP4 file has its index, and consists of whole boxes."""
    offset, has_index = 0, False
    for _ in range(_MAX_BOXES):
        file.seek(offset)
        header = file.read(16)
        if len(header) < 8:
            break
        box_bytes = int.from_bytes(header[:4], "big")
        if box_bytes == 1:
            box_bytes = int.from_bytes(header[8:], "big")
        has_index |= header[4:8] == b"moov"
        offset += box_bytes if box_bytes >= 8 else size_bytes  # 0 is the rest of the file
    return has_index and offset == size_bytes
