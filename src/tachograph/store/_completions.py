"""Where the completions of a run lie in its journal, so that any of them are found without reading the rest.

They are the bulk of a journal that has them: only their places, steps and columns are kept in memory and in segments.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from tachograph.records import decode, step_of

__all__ = ["CompletionIndex", "CompletionPlace", "CompletionView", "read_rows", "stubbed"]

_MOST_PLACES = 100_000
_MOST_COLUMNS = 500
_MOST_READ_BYTES = 64 << 20
_MOST_ANSWER_BYTES = 4 << 20


class CompletionPlace(msgspec.Struct, array_like=True):
    """One record: where it lies, and what is in it."""

    at: int
    size_bytes: int
    table: str
    columns: list[str]
    steps: list[tuple[int | None, int]]
    """How many rows there are of each step."""
    num_dropped: int

    def num_rows(self, low: int | None = None, high: int | None = None) -> int:
        """Return how many rows there are of some steps."""
        return sum(count for step, count in self.steps if _is_between(step, low, high))


class CompletionView(msgspec.Struct):
    """The rows that were asked for."""

    rows: list[dict[str, Any]]
    is_whole: bool
    """Whether these are all that match; otherwise there may be more that are older."""


class CompletionIndex:
    """Knows the last records of completions of a run by their places."""

    def __init__(self) -> None:
        self._places: deque[CompletionPlace] = deque(maxlen=_MOST_PLACES)

    def take(self, stub: dict[str, Any]) -> None:
        """Take what stands for a record, made just now or kept in a segment."""
        if stub.get("place"):  # none if the journal was replaced just then
            self._places.append(msgspec.convert(stub["place"], CompletionPlace))

    def places(self, table: str | None = None) -> list[CompletionPlace]:
        """Return the records, all or of one table, oldest first."""
        return [place for place in self._places if table in (None, place.table)]


def stubbed(journal: Path, records: list[dict[str, Any]], start: int, end: int) -> list[dict[str, Any]]:
    """Return records that were read from a stretch of a journal, with stubs in place of those of completions."""
    if not any(record["event"] == "completions" for record in records):
        return records
    lines = _lines(journal, start, end, len(records))
    return [
        _stub(record, lines[index] if index < len(lines) else None) if record["event"] == "completions" else record
        for index, record in enumerate(records)
    ]


def _lines(journal: Path, start: int, end: int, num_records: int) -> list[tuple[int, int]]:
    """Return where the lines of a stretch that are records begin, and how long they are."""
    try:
        with open(journal, "rb") as file:
            file.seek(start)
            block = file.read(end - start)
    except OSError:
        return []
    lines: list[tuple[int, int]] = []
    offset = 0
    for line in block.split(b"\n"):
        if line:
            lines.append((offset, len(line)))
        offset += len(line) + 1
    if len(lines) != num_records:
        lines = [(at, size) for at, size in lines if _decoded(block[at : at + size]) is not None]
    return [(start + at, size) for at, size in lines]


def _decoded(line: bytes) -> dict[str, Any] | None:
    try:
        return decode(line)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None


def _stub(record: dict[str, Any], line: tuple[int, int] | None) -> dict[str, Any]:
    stub: dict[str, Any] = {name: record[name] for name in ("event", "time", "global_step") if name in record}
    if line is None:
        return stub
    rows = _rows_of(record)
    columns = record.get("columns") if isinstance(record.get("columns"), list) else []
    num_dropped = record.get("num_dropped")
    place = CompletionPlace(
        at=line[0],
        size_bytes=line[1],
        table=str(record.get("table", "completions"))[:200],
        columns=list(dict.fromkeys([*filter(_is_text, columns or ()), *(name for row in rows for name in row)])),
        steps=list(Counter(row.get("step") for row in rows).items()),
        num_dropped=num_dropped if type(num_dropped) is int and num_dropped > 0 else 0,
    )
    del place.columns[_MOST_COLUMNS:]
    return {**stub, "place": msgspec.to_builtins(place)}


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _rows_of(record: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of a record; what does not say its step has that of the record, if it says one."""
    rows = []
    for row in record["rows"] if isinstance(record.get("rows"), list) else ():
        if isinstance(row, dict):
            own = step_of({"global_step": row.get("step")})
            step = step_of(record) if own is None else own
            cells = {name: value for name, value in row.items() if name != "step" and value is not None}
            rows.append(cells if step is None else {"step": step, **cells})
    return rows


def read_rows(
    journal: Path,
    places: list[CompletionPlace],
    *,
    low: int | None = None,
    high: int | None = None,
    search: str = "",
    limit: int = 200,
) -> CompletionView:
    """Return rows, the newest first, and no more of them, nor of the journal, than is good for one answer."""
    words = search.casefold()
    found: list[dict[str, Any]] = []
    num_read = num_bytes = 0
    for place in reversed(places):
        if not place.num_rows(low, high):
            continue
        if num_read > _MOST_READ_BYTES:
            return CompletionView(found, is_whole=False)
        num_read += place.size_bytes
        for row in _read(journal, place):
            if not _is_between(row.get("step"), low, high) or (words and not _says(row, words)):
                continue
            num_bytes += place.size_bytes // place.num_rows()
            if len(found) >= limit or (found and num_bytes > _MOST_ANSWER_BYTES):
                return CompletionView(found, is_whole=False)
            found.append(row)
    return CompletionView(found, is_whole=True)


def _read(journal: Path, place: CompletionPlace) -> Iterator[dict[str, Any]]:
    """Yield the rows of a record: those of later steps first, those of one step as they were recorded."""
    try:
        with open(journal, "rb") as file:
            file.seek(place.at)
            record = _decoded(file.read(place.size_bytes))
    except OSError:
        return
    if record is not None and record["event"] == "completions":  # otherwise the journal was replaced just now
        yield from sorted(_rows_of(record), key=lambda row: -row.get("step", -math.inf))


def _is_between(step: int | None, low: int | None, high: int | None) -> bool:
    if step is None:
        return low is None and high is None
    return (low is None or step >= low) and (high is None or step <= high)


def _says(row: dict[str, Any], words: str) -> bool:
    return any(words in value.casefold() for value in row.values() if isinstance(value, str))
