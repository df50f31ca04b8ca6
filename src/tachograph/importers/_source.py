"""The runs at a path, as an importer offers them to `tacho import`: each a stream of records that can be resumed.

A source yields its records in order, each with a position or with None. The position says how much of the log the
records so far contain; the importer of runs stores it now and then, and later reads on from there. After a record with
None, nothing may be stored: the record comes from the end of a log that may still grow, such as a line without a
newline or a row whose step may get more values. It is read again next time, and its lines in the journal are replaced
if they have changed. So the journal is always the one that a single import of the whole log would have made.

The position is one dict, which the source changes in place, and only when it is about to yield it.
"""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from tachograph.exceptions import ConfigError
from tachograph.importers._rows import rows_to_records

__all__ = [
    "MAX_DAMAGE",
    "Damage",
    "Position",
    "RowSource",
    "RunSource",
    "SourceRecord",
    "read_single_run",
    "source_changed",
]

Position = dict[str, Any]
SourceRecord = tuple[dict[str, Any], Position | None]

MAX_DAMAGE = 100
"""The maximum number of damaged parts in a report."""

_STEP_FIELDS = {"event", "time", "global_step", "sec_per_step"}


class Damage(msgspec.Struct, frozen=True):
    """A part of a log that could not be read."""

    path: str
    where: str
    """Such as `byte 1234` or `line 5`."""
    reason: str


class RunSource(ABC):
    """One run in a log of another tool.

    Args:
        path: where the log is.
        source_id: identifies the run among all of its format; the same when the log has grown.
        name: the name that the source has for it; not necessarily a valid run name.
    """

    def __init__(self, path: Path, source_id: str, name: str) -> None:
        self.path = path
        self.id = source_id
        self.name = name
        self.damage: list[Damage] = []
        """The parts that could not be read, known after `read`."""
        self.left_out: Counter[str] = Counter()
        """The number of items that a journal cannot store, by kind, known after `read`."""

    @abstractmethod
    def read(self, position: Position) -> Iterator[SourceRecord]:
        """Yield the records after a position, which is empty for a new run; see the module.

        The first record of a new run is a `start` record with the facts that the source has about the run.

        Raises:
            ConfigError: if the log cannot be read, or has changed other than by growing.
        """


def read_single_run(
    runs: list[RunSource], path: Path, format_name: str, *, choices: Iterable[str] = ()
) -> Iterator[dict[str, Any]]:
    """Yield the rows of the only run at a path, for `Importer.read`.

    Args:
        runs: the runs at the path.
        path: the path.
        format_name: the name of the importer.
        choices: paths below it of which each has one run, if there are such paths.

    Raises:
        ConfigError: if there are several.
    """
    if len(runs) > 1:
        if first_choices := ", ".join(sorted(choices)[:10]):
            raise ConfigError(f"{str(path)!r} holds several runs: name one of {first_choices}")
        names = ", ".join(run.name for run in runs[:10])
        raise ConfigError(f"{str(path)!r} holds several runs ({names}): import them with tacho import {format_name}")
    for run in runs:
        for record, _ in run.read({}):
            if record["event"] == "step":
                yield {name: value for name, value in record.items() if name != "event"}


def source_changed(path: Path) -> ConfigError:
    """Return the error for a log that no longer begins with the imported rows."""
    return ConfigError(
        f"{str(path)!r} has changed since it was imported, other than by growing; delete the run to import it again"
    )


class RowSource(RunSource):
    """A log of rows, such as a CSV file.

    Its position is the number of rows and a checksum of them. The log is read from the beginning each time: it may be
    compressed or rewritten as a whole, as `trainer_state.json` is.

    Args:
        path: the log.
        source_id: see `RunSource`.
        name: see `RunSource`.
        rows: returns the rows.
        damage: the list that `rows` adds to.
        left_out: the counter that `rows` adds to.
        start: fields for the `start` record.
        last: returns records that follow the rows, such as the `end` record.
        keeps_texts: whether values that are not numbers are imported as well.
    """

    def __init__(
        self,
        path: Path,
        source_id: str,
        name: str,
        rows: Callable[[], Iterator[dict[str, Any]]],
        damage: list[Damage],
        *,
        left_out: Counter[str] | None = None,
        start: dict[str, Any] | None = None,
        last: Callable[[], list[dict[str, Any]]] = list,
        keeps_texts: bool = False,
    ) -> None:
        super().__init__(path, source_id, name)
        self.damage = damage
        self.left_out = self.left_out if left_out is None else left_out
        self._rows = rows
        self._start = start or {}
        self._last = last
        self._keeps_texts = keeps_texts

    def read(self, position: Position) -> Iterator[SourceRecord]:
        """Yield the records of the rows after a position; the last one may be incomplete."""
        num_imported, imported_checksum = position.get("rows", 0), position.get("checksum", 0)
        start: dict[str, Any] | None = None if num_imported else {"event": "start", **self._start}
        last_time_s: float | None = None
        last_row: tuple[dict[str, Any], Position] | None = None
        number = checksum = 0
        dropped_values: Counter[str] = Counter()
        rows = self._rows_up_to_damage()
        for record in rows_to_records(rows, dropped_values, keeps_texts=self._keeps_texts):
            number += 1
            checksum = zlib.crc32(repr(record).encode("utf-8", "backslashreplace"), checksum)
            last_time_s = record.get("time", last_time_s)
            if number <= num_imported:
                if number == num_imported and checksum != imported_checksum:
                    raise source_changed(self.path)
                dropped_values.clear()
                continue
            if record["event"] == "start" and start is not None:
                start |= record
                continue
            if record["event"] == "step" and record.keys() <= _STEP_FIELDS:
                self.left_out["row without numbers"] += 1
                continue
            if start is not None:
                if "time" in record:
                    start.setdefault("time", record["time"])
                yield start, None
                start = None
            if last_row is not None:
                position.update(last_row[1])
                yield last_row[0], position
            last_row = record, {"rows": number, "checksum": checksum}
        if number < num_imported:
            raise source_changed(self.path)
        self.left_out.update(dropped_values)
        time = {} if last_time_s is None else {"time": last_time_s}
        last_records = [{**record, **({} if "time" in record else time)} for record in self._last()]
        if start is not None and (last_records or last_row):
            yield start, None
        for record in [*([last_row[0]] if last_row else []), *last_records]:
            yield record, None

    def _rows_up_to_damage(self) -> Iterator[dict[str, Any]]:
        """Yield the rows; an error after the first one ends them."""
        number = 0
        try:
            for row in self._rows():
                number += 1
                yield row
        except (ConfigError, EOFError, zlib.error) as error:
            if not number:
                raise
            reason = "the compressed data is not complete" if isinstance(error, EOFError) else str(error)
            self.damage.append(Damage(str(self.path), f"after row {number}", reason))
