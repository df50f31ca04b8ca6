"""An index of the completions in a journal, to read any of them without reading the rest.

Completions make up most of a journal that has them. So only offsets, steps and column names are kept, in memory and in
segments; a *stub* with these replaces the record, and `read_rows` reads the rows from the journal. Records of media and
histograms are replaced by stubs for the same reason; `tachograph.reader` has their index.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from tachograph._base.typed import convert
from tachograph.journal import open_journal
from tachograph.reader import (
    HistogramLocation,
    MediaLocation,
    locate_histograms,
    locate_media,
    locate_other_records,
)
from tachograph.records import decode, step_of

__all__ = [
    "MEDIA_PLACE",
    "CompletionIndex",
    "CompletionLocation",
    "CompletionView",
    "read_rows",
    "replace_large_records",
    "take_media_place",
]

MEDIA_PLACE = "_media_place"
"""Added to completions, texts and histograms: where the index of media finds them. Never leaves the store."""

_MAX_LOCATIONS = 100_000
_MAX_COLUMNS = 500
_MAX_READ_BYTES = 64 << 20
_MAX_RESULT_BYTES = 4 << 20


class CompletionLocation(msgspec.Struct, array_like=True):
    """The location of one `completions` record in the journal, and a summary of its rows."""

    offset: int
    size_bytes: int
    table: str
    columns: list[str]
    steps: list[tuple[int | None, int]]
    """The number of rows of each step."""
    num_dropped: int

    def num_rows(self, low: int | None = None, high: int | None = None) -> int:
        """Return the number of rows within a range of steps."""
        return sum(count for step, count in self.steps if _is_between(step, low, high))


class CompletionView(msgspec.Struct):
    """The rows that match a query."""

    rows: list[dict[str, Any]]
    is_whole: bool
    """Whether all matching rows are included; otherwise there may be older ones."""


class CompletionIndex:
    """The locations of the latest `completions` records of a run."""

    def __init__(self) -> None:
        self._locations: deque[CompletionLocation] = deque(maxlen=_MAX_LOCATIONS)

    def add(self, stub: dict[str, Any]) -> None:
        """Add the stub of a record, new or from a segment."""
        if stub.get("place"):  # missing if the journal was replaced while it was read
            self._locations.append(convert(stub["place"], CompletionLocation))

    def locations(self, table: str | None = None) -> list[CompletionLocation]:
        """Return the locations, oldest first; with `table`, only the ones of that table."""
        return [location for location in self._locations if table in (None, location.table)]


def replace_large_records(lines: bytes, start: int, records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return records with `completions`, `media` and `histograms` replaced by stubs.

    Args:
        lines: the lines of the journal that the records are from.
        start: the offset of the first line.
        records: the records.
    """
    if not any(record["event"] in _locate or _is_shown_as_media(record) for record in records):
        return records
    locations = _line_locations(lines, start, len(records))
    return [
        _stub(record, location) if record["event"] in _locate else _with_place(record, location)
        for record, location in zip(records, locations, strict=True)
    ]


def _is_shown_as_media(record: dict[str, Any]) -> bool:
    return record["event"] == "event" and record.get("name") in {"text", "histogram"}


def _with_place(record: dict[str, Any], line: tuple[int, int]) -> dict[str, Any]:
    """Return a record with its location in the index of media; most have none."""
    location = locate_other_records(record, *line)
    if location is None:
        return record
    kind = "histograms" if isinstance(location, HistogramLocation) else "media"
    return {**record, MEDIA_PLACE: [kind, msgspec.to_builtins(location)]}


def take_media_place(record: dict[str, Any]) -> MediaLocation | HistogramLocation | None:
    """Remove the location in the index of media from a record, and return it."""
    place = record.pop(MEDIA_PLACE, None)
    if not isinstance(place, list):
        return None
    if place[0] == "histograms":
        return convert(place[1], HistogramLocation)
    return convert(place[1], MediaLocation)


def _line_locations(block: bytes, start: int, num_records: int) -> list[tuple[int, int]]:
    """Return offset and length of each line that is a record."""
    lines: list[tuple[int, int]] = []
    offset = 0
    for line in block.split(b"\n"):
        if line:
            lines.append((offset, len(line)))
        offset += len(line) + 1
    # Invalid lines produced no record. Find them only if there are any, because decoding twice is slow.
    if len(lines) != num_records:
        lines = [(at, size) for at, size in lines if _decode_or_none(block[at : at + size]) is not None]
    return [(start + at, size) for at, size in lines]


def _decode_or_none(line: bytes) -> dict[str, Any] | None:
    try:
        return decode(line)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None


def _stub(record: dict[str, Any], line: tuple[int, int]) -> dict[str, Any]:
    stub: dict[str, Any] = {name: record[name] for name in ("event", "time", "global_step") if name in record}
    if record["event"] == "completions":
        stub = {**stub, **{name: value for name, value in _with_place(record, line).items() if name == MEDIA_PLACE}}
    return {**stub, "place": msgspec.to_builtins(_locate[record["event"]](record, *line))}


def _locate_completions(record: dict[str, Any], offset: int, size_bytes: int) -> CompletionLocation:
    rows = _rows_of(record)
    columns = record.get("columns") if isinstance(record.get("columns"), list) else []
    num_dropped = record.get("num_dropped")
    location = CompletionLocation(
        offset=offset,
        size_bytes=size_bytes,
        table=str(record.get("table", "completions"))[:200],
        columns=list(dict.fromkeys([*filter(_is_text, columns or ()), *(name for row in rows for name in row)])),
        steps=list(Counter(row.get("step") for row in rows).items()),
        num_dropped=num_dropped if type(num_dropped) is int and num_dropped > 0 else 0,
    )
    del location.columns[_MAX_COLUMNS:]
    return location


_locate: dict[str, Callable[[dict[str, Any], int, int], msgspec.Struct]] = {
    "completions": _locate_completions,
    "media": locate_media,
    "histograms": locate_histograms,
}


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _rows_of(record: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of a record; a row without a step has the step of the record, if there is one."""
    rows = []
    for row in record["rows"] if isinstance(record.get("rows"), list) else ():
        if isinstance(row, dict):
            row_step = step_of({"global_step": row.get("step")})
            step = step_of(record) if row_step is None else row_step
            cells = {name: value for name, value in row.items() if name != "step" and value is not None}
            rows.append(cells if step is None else {"step": step, **cells})
    return rows


def read_rows(
    journal: Path,
    locations: list[CompletionLocation],
    *,
    low: int | None = None,
    high: int | None = None,
    search: str = "",
    limit: int = 200,
) -> CompletionView:
    """Return matching rows, newest first, limited in number, in size and in bytes read from the journal."""
    text = search.casefold()
    matches: list[dict[str, Any]] = []
    num_read_bytes = num_bytes = 0
    for location in reversed(locations):
        if not location.num_rows(low, high):
            continue
        if num_read_bytes > _MAX_READ_BYTES:
            return CompletionView(matches, is_whole=False)
        num_read_bytes += location.size_bytes
        for row in _read_record_rows(journal, location):
            if not _is_between(row.get("step"), low, high) or (text and not _contains(row, text)):
                continue
            # Estimate the size of a row; encoding it just to measure it would be slow.
            num_bytes += location.size_bytes // location.num_rows()
            if len(matches) >= limit or (matches and num_bytes > _MAX_RESULT_BYTES):
                return CompletionView(matches, is_whole=False)
            matches.append(row)
    return CompletionView(matches, is_whole=True)


def _read_record_rows(journal: Path, location: CompletionLocation) -> Iterator[dict[str, Any]]:
    """Yield the rows of a record, later steps first and rows of one step in recorded order."""
    try:
        with open_journal(journal) as file:
            file.seek(location.offset)
            record = _decode_or_none(file.read(location.size_bytes))
    except OSError:
        return
    if record is not None and record["event"] == "completions":  # otherwise the journal was replaced
        yield from sorted(_rows_of(record), key=lambda row: -row.get("step", -math.inf))


def _is_between(step: int | None, low: int | None, high: int | None) -> bool:
    if step is None:
        return low is None and high is None
    return (low is None or step >= low) and (high is None or step <= high)


def _contains(row: dict[str, Any], text: str) -> bool:
    return any(text in value.casefold() for value in row.values() if isinstance(value, str))
