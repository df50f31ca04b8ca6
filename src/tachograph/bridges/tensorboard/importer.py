"""TensorBoard event files: scalars, texts, histograms, pictures, sounds and hyperparameters.

The event files of a folder are one run, together with the files of its subfolders for splits, such as `train` and
`validation`, whose tags get the name of the subfolder as a prefix. Several files of a run are read side by side in the
order of their times: each writer has a file of its own, and a restart begins a new one. Scalars of one step that follow
each other become one row.
"""

from __future__ import annotations

import heapq
import math
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tachograph.bridges.tensorboard._event_file import LoggedEvent, read_events
from tachograph.exceptions import ConfigError
from tachograph.importers import Position, RunSource, SourceRecord, field_name
from tachograph.media import ImportedFile
from tachograph.records import CONFIG_CHANGED, SPLIT_FOLDERS, SUMMARY

__all__ = ["TensorBoardImporter"]

_HPARAMS_FOLDER = re.compile(r"\d{9,}\.\d+")
"""The folder that `add_hparams` of torch makes inside the folder of a run, named after the time."""
_MAX_OPEN_FILES = 64
_FILE_TIME = re.compile(r"\.tfevents\.(\d{1,12})")


class TensorBoardImporter:
    """Reads an event file, or the event files of one run's folder."""

    def detects(self, path: Path) -> bool:
        """Return whether the path is an event file or a folder that holds one."""
        if path.is_dir():
            return next(path.rglob("*.tfevents.*"), None) is not None
        return ".tfevents." in path.name.lower()

    def read(self, path: Path) -> Iterator[dict[str, Any]]:
        """Yield a row per step with all scalars of that step."""
        runs = self.runs(path)
        if len(runs) > 1:
            names = ", ".join(run.path.relative_to(path).as_posix() for run in runs[:10])
            raise ConfigError(f"{str(path)!r} holds several runs: name one of {names}")
        rows: dict[int, dict[str, Any]] = defaultdict(dict)
        for run in runs:
            for record, _ in run.read({}):
                if record["event"] == "step":
                    rows[record["global_step"]].update(record)
        for step in sorted(rows):
            yield {name: value for name, value in rows[step].items() if name != "event"}

    def runs(self, path: Path) -> list[RunSource]:
        """Return the runs in a folder, or the one in a file."""
        if path.is_file():
            folder = path.resolve().parent
            return [TensorBoardSource(path, str(path.resolve()), _name_of(folder), {path: ""})]
        files: dict[Path, dict[Path, str]] = defaultdict(dict)
        for file in sorted(path.rglob("*.tfevents.*")):
            folder = file.parent
            is_part = folder != path and (
                folder.name.lower() in SPLIT_FOLDERS or _HPARAMS_FOLDER.fullmatch(folder.name)
            )
            files[folder.parent if is_part else folder][file] = f"{folder.name}/" if is_part else ""
        return [
            TensorBoardSource(
                folder,
                str(folder.resolve()),
                "-".join(folder.relative_to(path).parts) or _name_of(folder.resolve()),
                files[folder],
            )
            for folder in sorted(files)
        ]


def _name_of(folder: Path) -> str:
    """Return the name of a folder, or of its parent if it is the folder of a split."""
    return folder.parent.name if folder.name.lower() in SPLIT_FOLDERS else folder.name


class TensorBoardSource(RunSource):
    """The event files of one run, each with the prefix of its tags. The position has the offset in each of them."""

    def __init__(self, path: Path, source_id: str, name: str, files: dict[Path, str]) -> None:
        super().__init__(path, source_id, name)
        self._files = files

    def read(self, position: Position) -> Iterator[SourceRecord]:
        """Yield a `step` record for the scalars of a step, and an event for each text and histogram."""
        is_new = not position
        offsets: dict[str, int] = position.get("offsets", {})
        new_offsets: dict[str, int] = {}
        row: dict[str, Any] = {}

        def commit(step: int) -> Position:
            offsets.update(new_offsets)
            new_offsets.clear()
            position["offsets"], position["last_step"] = offsets, step
            return position

        for key, prefix, event, is_restart in self._events(offsets):
            records = self._to_records(event, prefix)
            for record in records:
                if row and ((is_restart and record is records[0]) or not _continues(row, record)):
                    yield row, commit(row["global_step"])
                    row = {}
                is_back = is_restart and record is records[0] and event.step < position.get("last_step", event.step)
                if is_new or is_back:
                    yield {"event": "start", "time": event.time_s}, None
                    is_new = False
                if record["event"] == "step":
                    row |= record
                elif record is records[-1]:
                    new_offsets[key] = event.end
                    yield record, commit(position.get("last_step", event.step))
                else:
                    yield record, None
            new_offsets[key] = event.end
        if row:
            yield row, None

    def _to_records(self, event: LoggedEvent, prefix: str | None) -> list[dict[str, Any]]:
        """Return the records of an event; the one with its scalars is the last, because others may continue it."""
        is_session, prefix = prefix is None, prefix or ""
        records: list[dict[str, Any]] = []
        scalars: dict[str, float] = {}
        for tag, kind, content in event.values:
            at = {"event": "event", "time": event.time_s}
            if kind == "scalar":
                scalars[field_name(prefix + tag)] = content
            elif kind == "hparams":
                records += [{**at, "name": CONFIG_CHANGED, "config": content}] if content else []
            elif kind == "text":
                records.append({**at, "name": kind, "global_step": event.step, "tag": prefix + tag, "text": content})
            elif kind == "histogram":
                records.append({**at, "name": kind, "global_step": event.step, "tag": prefix + tag, **content})
            elif kind in {"image", "audio"} and content:
                items = [{"file": ImportedFile(data)} for data in content]
                media = {"name": prefix + tag, "kind": kind, "items": items}
                records.append({"event": "media", "time": event.time_s, "global_step": event.step, **media})
            else:
                self.left_out[kind] += 1
        if scalars and is_session:  # the results that belong to the hyperparameters
            records.append({"event": "event", "time": event.time_s, "name": SUMMARY, SUMMARY: scalars})
        elif scalars:
            records.append({"event": "step", "time": event.time_s, "global_step": event.step, **scalars})
        return records

    def _events(self, offsets: dict[str, int]) -> Iterator[tuple[str, str | None, LoggedEvent, bool]]:
        """Yield the events of all files by time.

        With each come the name of its file, the prefix of its tags (None if it belongs to hyperparameters), and whether
        it is the first of a file after all earlier files ended.
        """
        files = list(self._files)
        keys = [file.name if file == self.path else file.relative_to(self.path).as_posix() for file in files]
        prefixes = [None if _HPARAMS_FOLDER.fullmatch(prefix[:-1]) else prefix for prefix in self._files.values()]
        # A job with many restarts has more files than a process may open. Each is opened when its time comes.
        is_many = len(files) > _MAX_OPEN_FILES
        queue = [(_file_time_s(file) if is_many else 0.0, index) for index, file in enumerate(files)]
        heapq.heapify(queue)
        readers: dict[int, Iterator[LoggedEvent]] = {}
        upcoming: dict[int, LoggedEvent] = {}
        unread: set[int] = set()
        while queue:
            _, index = heapq.heappop(queue)
            if index not in readers:
                offset = offsets.get(keys[index], 0)
                readers[index] = read_events(files[index], offset, self.damage)
                if not offset:
                    unread.add(index)
            else:
                event = upcoming.pop(index)
                is_restart = index in unread and upcoming.keys() <= unread
                unread.discard(index)
                yield keys[index], prefixes[index], event, is_restart
            following = next((event for event in readers[index] if event.values), None)
            if following is not None:
                upcoming[index] = following
                heapq.heappush(queue, (following.time_s if math.isfinite(following.time_s) else 0.0, index))


def _file_time_s(file: Path) -> float:
    """Return the time at which a file was made, from its name; 0 if the name does not have it."""
    match = _FILE_TIME.search(file.name)
    return float(match[1]) if match else 0.0


def _continues(row: dict[str, Any], record: dict[str, Any]) -> bool:
    """Return whether a record has other scalars of the same step."""
    is_same = record["event"] == "step" and record["global_step"] == row["global_step"]
    return is_same and not (row.keys() & record.keys()) - {"event", "time", "global_step"}
