"""The media of a run: pictures, tables, audio and so on that were logged beside metrics, and histograms.

A journal may have tens of thousands of such records, and some are large. `MediaIndex` keeps only where each one is, its
name, step and counts, and the hashes of its files; records are read again from the journal when they are needed.

`_media_files` opens the files. They may be missing: copied runs and pruned runs lack them.
"""

from __future__ import annotations

import gzip
import math
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import msgspec

from tachograph._base.guard import faults
from tachograph._base.typed import decode_json
from tachograph.journal import JournalFollower, RunFolder, open_journal
from tachograph.reader._media_files import has_media, is_media_file, media_path, open_media
from tachograph.records import decode, finite_or_none, restore_non_finite, step_of

__all__ = [
    "HistogramLocation",
    "MediaFile",
    "MediaIndex",
    "MediaItem",
    "MediaLocation",
    "MediaName",
    "RecordedHistogram",
    "RunMedia",
    "histogram_edges",
    "locate_histograms",
    "locate_media",
    "locate_other_records",
    "read_histograms",
    "read_media_items",
    "read_media_records",
    "read_table_rows",
    "scan_media",
    "table_cell_files",
]

_MAX_LOCATIONS = 100_000
_MAX_FILES = 200_000
_MAX_TEXT = 200
_MAX_TABLE_BYTES = 64 << 20
_MEDIA_WORDS = (b'"media"', b'"histograms"', b'"histogram"', b'"text"', b'"completions"')


class MediaLocation(msgspec.Struct, array_like=True):
    """The location of one `media` record in the journal, and a summary of its items."""

    offset: int
    size_bytes: int
    name: str
    kind: str
    step: int
    """The step; 0 if the record has none."""
    num_items: int
    num_dropped: int
    reason: str
    """Why items were dropped."""
    files: list[tuple[str, str]] = []
    """Hash and extension of each file. Empty once the location is in an index, which has the files of all records."""


class HistogramLocation(msgspec.Struct, array_like=True):
    """The location of one `histograms` record in the journal, and the names it has."""

    offset: int
    size_bytes: int
    step: int
    names: list[str]


class MediaFile(NamedTuple):
    """A file that the journal of a run lists."""

    extension: str
    kind: str
    """The kind of the record that lists it."""


def locate_media(record: dict[str, Any], offset: int, size_bytes: int) -> MediaLocation:
    """Return the location of a `media` record, given the offset and the size of its line."""
    items = _items_of(record)
    num_dropped = record.get("num_dropped")
    kind = record.get("kind")
    return MediaLocation(
        offset,
        size_bytes,
        str(record.get("name", "media"))[:_MAX_TEXT],
        kind if isinstance(kind, str) and len(kind) < 50 else "unknown",
        step_of(record) or 0,
        len(items),
        num_dropped if type(num_dropped) is int and num_dropped > 0 else 0,
        str(record.get("reason") or "")[:_MAX_TEXT],
        list(dict.fromkeys(_files_of(items))),
    )


def locate_histograms(record: dict[str, Any], offset: int, size_bytes: int) -> HistogramLocation:
    """Return the location of a `histograms` record, given the offset and the size of its line."""
    values = record.get("values")
    names = [name for name in values if isinstance(name, str)] if isinstance(values, dict) else []
    return HistogramLocation(offset, size_bytes, step_of(record) or 0, names)


def locate_other_records(
    record: dict[str, Any], offset: int, size_bytes: int
) -> MediaLocation | HistogramLocation | None:
    """Return the location of a record of another kind that is shown as media; None if it is none.

    These are completions, and the events `text` and `histogram` that facades and importers write.
    """
    media = _as_media(record)
    if media is not None:
        return locate_media(media, offset, size_bytes)
    tag = record.get("tag")
    if record.get("event") == "event" and record.get("name") == "histogram" and isinstance(tag, str):
        return HistogramLocation(offset, size_bytes, step_of(record) or 0, [tag[:_MAX_TEXT]])
    return None


def _as_media(record: dict[str, Any]) -> dict[str, Any] | None:
    """Return a `media` record as it is, and a text or a table of completions in the form of one; None for others."""
    event = record.get("event")
    if event == "media":
        return record
    at: dict[str, Any] = {name: record[name] for name in ("time", "global_step") if name in record}
    if event == "event" and record.get("name") == "text" and isinstance(record.get("text"), str):
        index = record.get("index")
        script_steps = {name: record[name] for name in record if name.endswith("_step") and name != "global_step"}
        item = {"index": index if type(index) is int else 0, "text": record["text"], "meta": script_steps}
        return {"event": "media", **at, "name": record.get("tag", "text"), "kind": "text", "items": [item]}
    if event == "completions" and isinstance(record.get("rows"), list):
        rows = [row for row in record["rows"] if isinstance(row, dict)]
        steps = [step for row in rows if (step := step_of({"global_step": row.get("step")})) is not None]
        columns = list(dict.fromkeys(str(name) for row in rows for name in row))
        item = {"index": 0, "columns": columns, "num_rows": len(rows), "rows": rows}
        return {
            "event": "media",
            **at,
            **({"global_step": max(steps)} if steps and "global_step" not in at else {}),
            "name": record.get("table", "completions"),
            "kind": "table",
            "items": [item],
        }
    return None


def _items_of(record: dict[str, Any]) -> list[dict[str, Any]]:
    items = record.get("items")
    return [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []


def _files_of(value: Any) -> Iterator[tuple[str, str]]:
    """Yield hash and extension of each file in the items of a record: of items, of their masks and of cells."""
    if isinstance(value, list):
        for item in value:
            yield from _files_of(item)
    elif isinstance(value, dict):
        sha256, extension = value.get("sha256"), value.get("ext")
        if is_media_file(sha256, extension) and value.get("kept") is not False:
            yield sha256, extension  # type: ignore[misc]
        for part in (value.get("masks"), value.get("rows")):
            yield from _files_of_cells(part)


def _files_of_cells(part: Any) -> Iterator[tuple[str, str]]:
    for row in part if isinstance(part, list) else [part]:
        for cell in row.values() if isinstance(row, dict) else ():
            if isinstance(cell, dict) and is_media_file(cell.get("sha256"), cell.get("ext")):
                yield cell["sha256"], cell["ext"]


class MediaName(msgspec.Struct):
    """The media of one name, without the items."""

    kind: str
    """The kind of the latest record."""
    steps: list[int]
    """The steps with items, ascending."""
    num_items: int
    num_dropped: int


class MediaIndex:
    """The locations of the latest `media` and `histograms` records of a run, and the files they list."""

    def __init__(self) -> None:
        self._media: deque[MediaLocation] = deque(maxlen=_MAX_LOCATIONS)
        self._histograms: deque[HistogramLocation] = deque(maxlen=_MAX_LOCATIONS)
        self._files: dict[bytes, MediaFile] = {}
        self._known_files: dict[MediaFile, MediaFile] = {}

    def add(self, location: MediaLocation) -> None:
        """Add a record."""
        for sha256, extension in location.files:
            file = MediaFile(extension, location.kind)
            # One object for all files of a kind: there may be many files.
            file = self._known_files.setdefault(file, file)
            key = bytes.fromhex(sha256)
            if key in self._files and self._files[key].kind in {"html", "plotly"}:
                continue  # stays a page, also if the same file is logged as a file
            self._files[key] = file
            if len(self._files) > _MAX_FILES:
                del self._files[next(iter(self._files))]
        location.files = []
        self._media.append(location)

    def add_location(self, location: MediaLocation | HistogramLocation) -> None:
        """Add a record, or one of histograms."""
        if isinstance(location, HistogramLocation):
            self.add_histograms(location)
        else:
            self.add(location)

    @property
    def num_records(self) -> dict[str, int]:
        """The number of records that are shown as media, and as histograms."""
        return {"media": len(self._media), "histograms": len(self._histograms)}

    def add_histograms(self, location: HistogramLocation) -> None:
        """Add a record of histograms."""
        if self._histograms and self._histograms[-1].names == location.names:
            location.names = self._histograms[-1].names  # one list for all records of a model
        self._histograms.append(location)

    def locations(self, name: str | None = None) -> list[MediaLocation]:
        """Return the locations of the media, oldest first; with `name`, only those."""
        return [location for location in self._media if name in (None, location.name)]

    def histogram_locations(self, name: str) -> list[HistogramLocation]:
        """Return the locations of the records that have a histogram, oldest first."""
        return [location for location in self._histograms if name in location.names]

    def histogram_names(self) -> dict[str, int]:
        """Return the names of all histograms with the number of records of each, in order of appearance."""
        counts: dict[str, int] = {}
        for location in self._histograms:
            for name in location.names:
                counts[name] = counts.get(name, 0) + 1
        return counts

    def file(self, sha256: str) -> MediaFile | None:
        """Return the file with a hash, if the journal lists it."""
        return self._files.get(bytes.fromhex(sha256)) if is_media_file(sha256, "any") else None

    def names(self) -> dict[str, MediaName]:
        """Return a summary of each name, in order of appearance."""
        names: dict[str, MediaName] = {}
        for location in self._media:
            entry = names.setdefault(location.name, MediaName(location.kind, [], 0, 0))
            entry.kind = location.kind
            entry.num_items += location.num_items
            entry.num_dropped += location.num_dropped
            if location.num_items:
                entry.steps.append(location.step)
        for entry in names.values():
            entry.steps = sorted(set(entry.steps))
        return names


def scan_media(journal: Path) -> MediaIndex:
    """Return the index of a journal."""
    index = MediaIndex()
    follower = JournalFollower(journal)
    while lines := follower.poll_lines():
        offset = follower.offset - len(lines)
        for line in lines.split(b"\n"):
            # Look for the word first: most lines are steps, and decoding all of them would take long.
            record = _decode_or_none(line) if any(word in line for word in _MEDIA_WORDS) else None
            if record is not None and record["event"] == "histograms":
                index.add_histograms(locate_histograms(record, offset, len(line)))
            elif record is not None and (location := locate_other_records(record, offset, len(line))) is not None:
                index.add_location(location)
            offset += len(line) + 1
    return index


def _decode_or_none(line: bytes) -> dict[str, Any] | None:
    try:
        return decode(line)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None


def read_media_records(journal: Path, locations: Iterable[MediaLocation]) -> Iterator[dict[str, Any]]:
    """Yield the records at some locations; it skips records that the journal no longer has.

    `items` of a yielded record is a list of dicts; everything else is as recorded.
    """
    for line in _read_lines(journal, ((location.offset, location.size_bytes) for location in locations)):
        decoded = _decode_or_none(line)
        record = None if decoded is None else _as_media(decoded)
        if record is not None:  # otherwise the journal was replaced
            yield {**record, "items": _items_of(record), "global_step": step_of(record) or 0}


def _read_lines(journal: Path, lines: Iterable[tuple[int, int]]) -> Iterator[bytes]:
    try:
        with open_journal(journal) as file:
            for offset, size in lines:
                file.seek(offset)
                yield file.read(size)
    except faults(OSError):
        return


# Histograms ----------------------------------------------------------------------------------------------------------


class RecordedHistogram(msgspec.Struct):
    """The distribution of some values at one step."""

    step: int
    time: float | None
    edges: list[float]
    """The edges of the bins, one more than `counts`; empty, like `counts`, if there were no finite values."""
    counts: list[float]
    num_values: int
    """The number of values in the bins."""
    num_not_finite: int = 0
    """The number of NaN and infinite values, which are in no bin."""
    min: float | None = None
    max: float | None = None
    mean: float | None = None
    std: float | None = None
    is_sampled: bool = False
    """Whether only a part of the values was counted."""
    is_shard: bool = False
    """Whether only the part of a distributed tensor was counted that rank 0 has."""


class _HistogramsRecord(msgspec.Struct):
    """A record of histograms, of which only one is parsed."""

    event: str
    values: dict[str, msgspec.Raw] = {}
    time: Any = None
    global_step: Any = None
    name: Any = None
    tag: Any = None
    """The name of the histogram of an event."""


def read_histograms(journal: Path, locations: Iterable[HistogramLocation], name: str) -> Iterator[RecordedHistogram]:
    """Yield one histogram from each of some records; invalid ones are skipped."""
    for line in _read_lines(journal, ((location.offset, location.size_bytes) for location in locations)):
        try:
            record = decode_json(line, _HistogramsRecord)
            values: dict[str, Any] | None
            if record.event == "event" and record.name == "histogram" and str(record.tag)[:_MAX_TEXT] == name:
                values = _values_of_event(decode(line))
            else:
                values = decode_json(bytes(record.values[name]), dict) if name in record.values else None
        except (msgspec.MsgspecError, ValueError, RecursionError):
            continue
        if record.event in {"histograms", "event"} and values is not None:
            step = step_of({"global_step": record.global_step}) or 0
            histogram = _histogram_of(restore_non_finite(values), step, finite_or_none(record.time))
            if histogram is not None:
                yield histogram


def _values_of_event(event: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of the event `histogram` under the names of a `histograms` record."""
    counts = event.get("counts")
    numbers = [finite_or_none(count) or 0 for count in counts] if isinstance(counts, list) else []
    return {**event, "n": round(sum(numbers)), "nonfinite": event.get("num_not_finite")}


def _histogram_of(values: dict[str, Any], step: int, time: float | None) -> RecordedHistogram | None:
    counts = values.get("counts")
    edges = histogram_edges(values)
    if not isinstance(counts, list) or not isinstance(edges, list):
        return None
    if not all(finite_or_none(value) is not None for value in (*counts, *edges)):
        return None
    if len(edges) != len(counts) + 1 and (edges or counts):
        return None
    return RecordedHistogram(
        step,
        time,
        edges,
        counts,
        _count_of(values.get("n")),
        _count_of(values.get("nonfinite")),
        finite_or_none(values.get("min")),
        finite_or_none(values.get("max")),
        finite_or_none(values.get("mean")),
        finite_or_none(values.get("std")),
        is_sampled=values.get("sampled") is True,
        is_shard=values.get("shard") is True,
    )


def _count_of(value: Any) -> int:
    return value if type(value) is int and value >= 0 else 0


def histogram_edges(values: dict[str, Any]) -> list[float] | None:
    """Return the edges of a recorded histogram: a list, or powers of two."""
    edges = values.get("edges") if "edges" in values else _power_edges(values.get("exp2"))
    return edges if isinstance(edges, list) else None


def _power_edges(powers: Any) -> list[float] | None:
    """Return the edges of signed powers of two: ``-2^high … -2^low, 2^low … 2^high``."""
    if not isinstance(powers, list) or len(powers) != 2 or not all(type(power) is int for power in powers):
        return None
    low, high = powers
    if not -1_000 <= low < high <= 1_000 or high - low > 2_000:
        return None
    positive = [math.ldexp(1.0, power) for power in range(low, high + 1)]
    return [*(-edge for edge in reversed(positive)), *positive]


# Files ---------------------------------------------------------------------------------------------------------------


def table_cell_files(rows: Iterable[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    """Yield hash and extension of each file in the cells of a table."""
    yield from _files_of_cells(list(rows))


def read_table_rows(file: BinaryIO, max_bytes: int = _MAX_TABLE_BYTES) -> tuple[list[dict[str, Any]], bool]:
    """Return the rows of a table file, and whether these are all: it is read up to `max_bytes` when decompressed."""
    rows: list[dict[str, Any]] = []
    num_bytes = 0
    try:
        with gzip.open(file) as stream:
            while line := stream.readline(max_bytes - num_bytes + 1):
                num_bytes += len(line)
                if num_bytes > max_bytes:
                    return rows, False
                rows.append(restore_non_finite(decode_json(line, dict)))
    except faults(OSError, EOFError, msgspec.MsgspecError, ValueError, RecursionError):  # damaged
        return rows, False
    return rows, True


# Python API ----------------------------------------------------------------------------------------------------------


class MediaItem(msgspec.Struct):
    """One logged picture, table, text, sound, video or file."""

    name: str
    kind: str
    step: int
    time: float | None
    index: int
    caption: str | None
    meta: dict[str, Any]
    path: Path | None
    """The stored file; None if the item has none, or if it is missing or packed: `open` also reads those."""
    problem: str | None
    """Why there is no data or not all of it: the reason of the recorder, or that the file is missing."""
    fields: dict[str, Any]
    """Everything that was recorded about the item, such as `width`, `text`, `boxes` or `rows`."""
    folder: RunFolder
    """The folder of the run."""

    @property
    def prompt_id(self) -> str:
        """Joins the same prompt at different steps and in different runs; by default the index."""
        return str(self.meta.get("prompt_id", self.index))

    @property
    def is_missing(self) -> bool:
        """Whether the item has a file that is not in the folder of the run."""
        sha256, extension = self.fields.get("sha256"), self.fields.get("ext")
        has_file = is_media_file(sha256, extension) and self.fields.get("kept") is not False
        return has_file and not has_media(self.folder, str(sha256), str(extension))

    def open(self) -> BinaryIO | None:
        """Open the stored file, also one that `tacho compact` has packed; None if there is none."""
        sha256, extension = self.fields.get("sha256"), self.fields.get("ext")
        if not is_media_file(sha256, extension) or self.fields.get("kept") is False:
            return None
        return open_media(self.folder, str(sha256), str(extension))

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows of a table, up to 64 MB of them."""
        if isinstance(self.fields.get("rows"), list):
            return [row for row in self.fields["rows"] if isinstance(row, dict)]
        file = self.open() if self.kind == "table" else None
        if file is None:
            return []
        with file:
            return read_table_rows(file)[0]


class RunMedia:
    """The media of a run.

    Example:
        >>> media = tachograph.read("logs/greyjacket").media
        >>> media.names["samples"].steps
        >>> [item.path for item in media.items("samples", step=500)]
    """

    def __init__(self, folder: RunFolder, index: MediaIndex) -> None:
        self._folder = folder
        self._index = index

    def __repr__(self) -> str:
        return f"RunMedia({', '.join(self.names)})"

    @property
    def names(self) -> dict[str, MediaName]:
        """The names that media were logged under, each with its kind, steps and counts."""
        return self._index.names()

    def items(self, name: str | None = None, *, step: int | None = None) -> Iterator[MediaItem]:
        """Yield all items, or the ones of a name or a step, oldest first."""
        locations = [location for location in self._index.locations(name) if step in (None, location.step)]
        yield from read_media_items(self._folder, locations)


def read_media_items(folder: RunFolder, locations: Iterable[MediaLocation]) -> Iterator[MediaItem]:
    """Yield the items of the records at some locations."""
    for record in read_media_records(folder.journal, locations):
        for index, item in enumerate(record["items"]):
            yield _media_item(folder, record, item, index)


def _media_item(folder: RunFolder, record: dict[str, Any], item: dict[str, Any], index: int) -> MediaItem:
    sha256, extension = item.get("sha256"), item.get("ext")
    has_file = is_media_file(sha256, extension) and item.get("kept") is not False
    path = media_path(folder, str(sha256), str(extension)) if has_file else None
    problem = item.get("problem") if isinstance(item.get("problem"), str) else None
    if path is not None and not has_media(folder, str(sha256), str(extension)):
        problem, path = f"its file is missing: {path}", None
    elif path is not None and not path.is_file():
        path = None  # packed
    number, caption, meta = item.get("index"), item.get("caption"), item.get("meta")
    return MediaItem(
        str(record.get("name", "media")),
        str(record.get("kind", "unknown")),
        record["global_step"],
        finite_or_none(record.get("time")),
        number if type(number) is int else index,
        caption if isinstance(caption, str) else None,
        meta if isinstance(meta, dict) else {},
        path,
        problem,
        item,
        folder,
    )
