"""Encode many step records with the same field names at once.

Formatting floats dominates the cost of writing a record, and the journal and its CSV mirror need the same digits. So
the numbers of a batch are encoded once, as one flat JSON array. The tokens between the commas are then joined twice,
with different separators ("glue"): field names for the journal, commas for the CSV. Only numbers and bools can be
encoded this way; for anything else `StepTable.encode` returns None and the caller encodes record by record.

Nearly all rows are finite, so `nan_inf_detected` is normally a constant that costs nothing. A table with a NaN or an
infinity has a column for it instead: a diverged run logs NaN at every step, which must not cost more than a number.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable
from typing import Any

import msgspec

from tachograph.records._codec import mark_non_finite
from tachograph.records._values import is_array

__all__ = ["Encodable", "StepTable"]


def _number(value: Any) -> Any:
    """Return the value of a numpy scalar. Reject arrays: their owner could change them before they are encoded."""
    if hasattr(type(value), "setflags") and not is_array(value):
        return value.item()
    raise TypeError(type(value).__name__)


_encode = msgspec.json.Encoder(enc_hook=_number).encode
_FLAG = "nan_inf_detected"
_TAIL = b',"nan_inf_detected":false}\n'
_TAIL_AFTER_FLAG = b"}\n"


class StepTable:
    """Step records with the same field names: their values row by row, and the encoded token of each value."""

    __slots__ = ("names", "num_rows", "tokens", "values")

    CONSTANTS: tuple[tuple[str, bytes], ...] = (("event", b"step"), (_FLAG, b"false"))
    """Fields that have the same value in every row, and no token, unless they are among the names."""

    def __init__(self, names: tuple[str, ...], values: list[Any], tokens: list[bytes], num_rows: int) -> None:
        self.names = names
        self.values = values
        self.tokens = tokens
        self.num_rows = num_rows

    @classmethod
    def encode(cls, names: tuple[str, ...], values: list[Any], num_rows: int) -> StepTable | None:
        """Encode the concatenated values of all rows; return None if one is neither a number nor a bool.

        If a value is NaN or infinite, the table gets a column `nan_inf_detected`, unless the names contain it.
        """
        try:
            text = _encode(values)[1:-1]
        except Exception:  # noqa: BLE001 - a type unknown to msgspec
            return None
        # A quote means text, a bracket or brace means nesting, and an "n" is from null: None, NaN or infinity.
        if b'"' in text or b"[" in text or b"{" in text:
            return None
        tokens = text.split(b",")
        if len(tokens) != len(names) * num_rows:
            return None
        return (
            cls._mark_non_finite(names, values, tokens, num_rows)
            if b"n" in text
            else cls(names, values, tokens, num_rows)
        )

    @classmethod
    def _mark_non_finite(
        cls, names: tuple[str, ...], values: list[Any], tokens: list[bytes], num_rows: int
    ) -> StepTable | None:
        """Replace each null by the marker of its value; return None if one of the values is None."""
        width = len(names)
        flags = [False] * num_rows
        index = -1
        with contextlib.suppress(ValueError):  # no further null
            while True:
                index = tokens.index(b"null", index + 1)
                value = values[index]
                number = value.item() if hasattr(value, "item") else value
                if not isinstance(number, float):
                    return None
                tokens[index] = b'"%s"' % mark_non_finite(number).encode()
                flags[index // width] = True
        if _FLAG in names:
            return cls(names, values, tokens, num_rows)
        flag_tokens = [b"true" if flag else b"false" for flag in flags]
        wide_values = _add_column(values, flags, width)
        return cls((*names, _FLAG), wide_values, _add_column(tokens, flag_tokens, width), num_rows)

    @classmethod
    def from_records(cls, records: Iterable[dict[str, Any]]) -> list[Encodable]:
        """Combine consecutive step records with the same field names into tables; return other records unchanged."""
        pieces: list[Encodable] = []
        for keys, group in itertools.groupby(records, key=tuple):
            rows = list(group)
            table = None
            if keys[:1] == ("event",) and keys[-1:] == (_FLAG,) and all(row["event"] == "step" for row in rows):
                if all(row[_FLAG] is False for row in rows):
                    table = cls._from_rows(rows, keys[1:-1])
                if table is None or _FLAG in table.names:  # the records state the flag: never infer it
                    table = cls._from_rows(rows, keys[1:])
            pieces += rows if table is None else [table]
        return pieces

    @classmethod
    def _from_rows(cls, rows: list[dict[str, Any]], names: tuple[str, ...]) -> StepTable | None:
        end = 1 + len(names)
        values = list(itertools.chain.from_iterable(tuple(row.values())[1:end] for row in rows))
        return cls.encode(names, values, len(rows))

    def lines(self, glue_cache: dict[tuple[str, ...], list[bytes]]) -> bytes:
        """Return the rows as journal lines; `glue_cache` holds the glue of each tuple of names."""
        tail = _TAIL_AFTER_FLAG if _FLAG in self.names else _TAIL
        separators = glue_cache.get(self.names)
        if separators is None:
            first, *rest = (_encode(name) for name in self.names)
            separators = [tail + b'{"event":"step",' + first + b":", *(b"," + name + b":" for name in rest)]
            if len(glue_cache) >= 256:
                glue_cache.clear()
            glue_cache[self.names] = separators
        return self.join(None, separators, tail)

    def csv_rows(self, order: list[int] | None, separators: list[bytes], tail: bytes) -> bytes:
        """Return the rows of a CSV, in which the markers of NaN and infinity have no quotes; see `join`."""
        rows = self.join(order, separators, tail)
        return rows.replace(b'"', b"") if _FLAG in self.names else rows

    def join(self, order: list[int] | None, separators: list[bytes], tail: bytes) -> bytes:
        """Join the tokens of all rows.

        Args:
            order: the order of the tokens within a row; None keeps the order of `names`.
            glue: the bytes before each token of a row; the first starts with `tail`, which ends the previous row.
            tail: the bytes at the end of a row.
        """
        width = len(self.names)
        pieces = [b""] * (2 * len(self.tokens))
        pieces[0::2] = separators * self.num_rows
        if order is None:
            pieces[1::2] = self.tokens
        else:
            for position, index in enumerate(order):
                pieces[2 * position + 1 :: 2 * width] = self.tokens[index::width]
        return b"".join(pieces)[len(tail) :] + tail


def _add_column(cells: list[Any], column: list[Any], width: int) -> list[Any]:
    """Return a table of rows of `width` cells with one more cell at the end of each row."""
    wide = [None] * (len(cells) + len(column))
    for index in range(width):
        wide[index :: width + 1] = cells[index::width]
    wide[width :: width + 1] = column
    return wide


Encodable = StepTable | dict[str, Any]
"""One or more records, ready to be encoded."""
