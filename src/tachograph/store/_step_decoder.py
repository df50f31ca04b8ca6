"""Decode plain steps directly into columns: most lines of a long journal are steps with the same few names.

Decoding a line into a dict, and collecting the columns from dicts, takes several times as long as decoding it into an
object whose fields are known. So the names of the steps and the sorts of their values are learned from the first lines
and compiled into a typed decoder, which rejects anything else: a new name, a value of another sort, or a missing or
invalid step or time. Rejected lines are read as records, and the decoder learns from them. A journal whose names
change all the time, or that gives one name to both numbers and texts, is read as records from then on.

The result is the same either way; see `Tail.add` and `Tail.add_steps`.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import re
import struct
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from tachograph._base.typed import lines_decoder
from tachograph.reader import NOT_METRICS
from tachograph.records import decode, is_number
from tachograph.store._columns import Floats, Integers

__all__ = ["LinesPiece", "StepColumns", "StepDecoder", "count_steps", "split_lines"]

_PREFIX = b'{"event":"step",'
_OTHER_LINE = re.compile(rb"\n(?!" + re.escape(_PREFIX) + rb"|\Z)")
_WINDOW = b'"window/sec":'
_MIN_STEPS = 8
"""Fewer steps in a row are read as records."""
_MAX_OTHER_SHARE = 0.1
_MAX_NAMES = 1_000
_MAX_FAILURES = 50
_MAX_STEP = 2**53
_LARGE = 1e300  # see `is_number`

_MISSING = struct.unpack("<d", b"\x01\x00\x00\x00\x00\x00\xf8\x7f")[0]
"""The value of a name that a line lacks: a NaN with bits of its own. JSON has no NaN, so nothing else has these."""
_MISSING_BITS = np.float64(_MISSING).view(np.uint64)

_Number = float | Literal["NaN", "Infinity", "-Infinity"]
_TYPES: dict[str, tuple[Any, Any]] = {
    "number": (_Number, _MISSING),
    "bool": (bool, False),
    "other": (str | dict[str, Any] | list[Any] | None, None),
}
"""The type and the default of values of each sort."""
_INVALID = (msgspec.MsgspecError, ValueError, RecursionError)
_Step = Annotated[int, msgspec.Meta(gt=-_MAX_STEP, lt=_MAX_STEP)]


class LinesPiece(NamedTuple):
    """Consecutive lines of a block."""

    first: int
    end: int
    num_steps: int
    """The number of lines if they are probably plain steps; 0 if they are to be read as records."""


class StepColumns(NamedTuple):
    """Consecutive plain steps as columns."""

    first: dict[str, Any]
    last: dict[str, Any]
    """The first and the last step as records."""
    steps: Integers
    times: Floats
    names: Sequence[str]
    values: Floats
    """One row per name, NaN and infinities included."""
    is_missing: npt.NDArray[np.bool_] | None
    """Which values a step does not have; None if each has all of them."""


def count_steps(block: bytes) -> int:
    """Return how many complete lines are steps."""
    return block.count(b"\n" + _PREFIX) + block.startswith(_PREFIX)


def split_lines(block: bytes) -> Iterator[LinesPiece]:
    """Divide complete lines into runs of plain steps and the lines between them."""
    num_lines = block.count(b"\n")
    starts_with_step = block.startswith(_PREFIX)
    others: list[int] = []  # the offsets of lines that are no plain steps
    if count_steps(block) < num_lines:
        others = [*([] if starts_with_step else [0]), *(match.end() for match in _OTHER_LINE.finditer(block))]
    if (at := block.find(_WINDOW)) >= 0:
        others = sorted({*others, *_lines_with(block, _WINDOW, at)})
    if not others and num_lines >= _MIN_STEPS:
        yield LinesPiece(0, len(block), num_lines)
        return
    if len(others) > _MAX_OTHER_SHARE * num_lines or num_lines < _MIN_STEPS:
        yield LinesPiece(0, len(block), 0)
        return
    records_from, position = 0, 0  # lines before `position` are steps of earlier pieces, or records
    for start in [*others, len(block)]:
        # A few steps between other lines are not worth a piece of their own.
        num_steps = block.count(b"\n", position, start)
        if num_steps >= _MIN_STEPS:
            if records_from < position:
                yield LinesPiece(records_from, position, 0)
            yield LinesPiece(position, start, num_steps)
            records_from = start
        position = block.index(b"\n", start) + 1 if start < len(block) else start
    if records_from < len(block):
        yield LinesPiece(records_from, len(block), 0)


def _lines_with(block: bytes, text: bytes, at: int) -> Iterator[int]:
    """Yield the offsets of the lines that contain a text, which is found first at an offset."""
    while at >= 0:
        yield block.rfind(b"\n", 0, at) + 1
        end = block.index(b"\n", at)
        at = block.find(text, end)


class StepDecoder:
    """Decodes the plain steps of one journal, in order."""

    def __init__(self) -> None:
        self._sorts: dict[str, str] = {}
        """The names of the steps, and the sort of their values."""
        self._num_failures = 0
        self._was_plain = False
        self._layout: _RowLayout | None = None

    def decode_block(self, lines: bytes) -> StepColumns | None:
        """Decode a block if all of it is plain steps and the one before was, or return None."""
        if not self._was_plain:
            return None
        columns = self._decode(lines, count_steps(lines))
        self._was_plain = columns is not None
        return columns

    def decode(self, piece: LinesPiece, lines: bytes) -> StepColumns | None:
        """Decode the lines of a piece, or return None if they must be read as records; then pass those to `learn`."""
        if not piece.num_steps or self._num_failures > _MAX_FAILURES:
            return None
        if self._layout is None:
            with contextlib.suppress(*_INVALID):
                self._learn_from([decode(lines[: lines.index(b"\n")])])
        columns = self._decode(lines, piece.num_steps)
        self._was_plain = columns is not None
        return columns

    def _decode(self, lines: bytes, num_lines: int) -> StepColumns | None:
        layout = self._layout
        if layout is None or (layout.has_texts and (b'NaN"' in lines or b'Infinity"' in lines)):
            return None  # a text may be one of the markers of NaN and infinity, which are numbers
        try:
            first, last = decode(lines[: lines.index(b"\n")]), decode(lines[lines.rindex(b"\n", 0, -1) + 1 :])
            rows = layout.decode_lines(lines)
        except _INVALID:
            return None
        if len(rows) != num_lines:  # a line is no step, which the decoder takes for one if it has no kind
            return None
        table = layout.table(rows)
        times, values = table[0], table[2:]
        if _has_large(table):  # a record tells whether it was written as an integer, which does not count
            return None
        is_missing = values.view(np.uint64) == _MISSING_BITS
        return StepColumns(
            first,
            last,
            table[1].astype(np.int64),
            times,
            layout.names,
            values,
            is_missing if is_missing.any() else None,
        )

    def learn(self, records: Sequence[dict[str, Any]]) -> None:
        """Learn names and sorts of values from steps that could not be decoded."""
        self._num_failures += 1
        if self._num_failures <= _MAX_FAILURES:
            self._learn_from(records)

    def _learn_from(self, records: Sequence[dict[str, Any]]) -> None:
        num_known = len(self._sorts)
        for record in records:
            for name, value in record.items():
                sort = "number" if is_number(value) else "bool" if isinstance(value, bool) else "other"
                if self._sorts.setdefault(name, sort) != sort:
                    self._num_failures = _MAX_FAILURES + 1
                    return
        if len(self._sorts) > _MAX_NAMES:
            self._num_failures = _MAX_FAILURES + 1
        elif len(self._sorts) > num_known:
            try:
                self._layout = _layout_of(tuple(self._sorts.items()))
            except ValueError:  # a name with control characters
                self._num_failures = _MAX_FAILURES + 1


def _has_large(table: Floats) -> bool:
    is_large = np.abs(table) >= _LARGE
    return bool(is_large.any() and np.isfinite(table[is_large]).any())


class _RowLayout(NamedTuple):
    names: list[str]
    """The names of the metrics."""
    has_texts: bool
    """Whether there are values that are neither numbers nor truth values."""
    decode_lines: Callable[[bytes], list[Any]]
    get_values: Callable[[Any], tuple[float | str, ...]]
    """Returns values of a row."""
    num_values: int
    indexes: list[int]
    """The indexes of the time, the step and the metrics among the values of a row."""

    def table(self, rows: list[Any]) -> Floats:
        """Return the times, the steps and the values of each metric."""
        size = len(rows) * self.num_values
        try:  # several times as fast as numpy
            flat = np.frombuffer(struct.pack(f"{size}d", *itertools.chain.from_iterable(map(self.get_values, rows))))
        except struct.error:  # a marker of NaN or infinity
            each = itertools.chain.from_iterable(map(self.get_values, rows))
            flat = np.fromiter(map(float, each), np.float64, size)
        table: Floats = flat.reshape(len(rows), self.num_values).T[self.indexes]
        return table


@functools.lru_cache(maxsize=64)
def _layout_of(sorts: tuple[tuple[str, str], ...]) -> _RowLayout:
    """Return the decoder of steps with these names; the runs of a folder often have the same."""
    values = {f"value_{number}": pair for number, pair in enumerate(sorts) if pair[0] not in NOT_METRICS}
    row_type = msgspec.defstruct(
        "StepRow",
        [  # in the order in which they are written, which is the fastest to decode
            ("time", float, msgspec.field()),
            ("global_step", _Step, msgspec.field()),
            *((field, *_TYPES[sort]) for field, (_, sort) in values.items()),
        ],
        rename={field: name for field, (name, _) in values.items()},
        forbid_unknown_fields=True,
        kw_only=True,
        gc=False,
        tag_field="event",
        tag="step",
    )
    metrics = {field: name for field, (name, sort) in values.items() if sort == "number"}
    number_fields = ["time", "global_step", *metrics]
    has_texts = any(sort == "other" for _, sort in values.values())
    fields = number_fields if has_texts else ["time", "global_step", *values]
    get_values: Callable[[Any], tuple[Any, ...]] = attrgetter(*number_fields) if has_texts else msgspec.structs.astuple
    indexes = [fields.index(field) for field in number_fields]
    return _RowLayout(list(metrics.values()), has_texts, lines_decoder(row_type), get_values, len(fields), indexes)
