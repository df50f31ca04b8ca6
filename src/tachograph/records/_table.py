"""Encode many step records with the same field names at once.

Formatting floats dominates the cost of writing a record, and the journal and its CSV mirror need the same digits. So
the numbers of a batch are encoded once, as one flat JSON array. The tokens between the commas are then joined twice,
with different separators ("glue"): field names for the journal, commas for the CSV. Only finite numbers and bools can
be encoded this way; for anything else `StepTable.encode` returns None and the caller encodes record by record.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import msgspec

from tachograph.records._values import is_array

__all__ = ["Encodable", "StepTable"]


def _number(value: Any) -> Any:
    """Return the value of a numpy scalar. Reject arrays: their owner could change them before they are encoded."""
    if hasattr(type(value), "setflags") and not is_array(value):
        return value.item()
    raise TypeError(type(value).__name__)


_encode = msgspec.json.Encoder(enc_hook=_number).encode
_TAIL = b',"nan_inf_detected":false}\n'


class StepTable:
    """Step records with the same field names: their values row by row, and the encoded token of each value."""

    __slots__ = ("names", "num_rows", "tokens", "values")

    CONSTANTS: tuple[tuple[str, bytes], ...] = (("event", b"step"), ("nan_inf_detected", b"false"))
    """Fields with the same value in every row; they have no token."""

    def __init__(self, names: tuple[str, ...], values: list[Any], tokens: list[bytes], num_rows: int) -> None:
        self.names = names
        self.values = values
        self.tokens = tokens
        self.num_rows = num_rows

    @classmethod
    def encode(cls, names: tuple[str, ...], values: list[Any], num_rows: int) -> StepTable | None:
        """Encode the concatenated values of all rows; return None if one is neither a finite number nor a bool."""
        try:
            text = _encode(values)[1:-1]
        except Exception:  # noqa: BLE001 - a type unknown to msgspec
            return None
        # A quote means text, a bracket or brace means nesting, and an "n" is from null: None, NaN or infinity.
        if b'"' in text or b"n" in text or b"[" in text or b"{" in text:
            return None
        tokens = text.split(b",")
        return cls(names, values, tokens, num_rows) if len(tokens) == len(names) * num_rows else None

    @classmethod
    def from_records(cls, records: Iterable[dict[str, Any]]) -> list[Encodable]:
        """Combine consecutive step records with the same field names into tables; return other records unchanged."""
        pieces: list[Encodable] = []
        for keys, group in itertools.groupby(records, key=tuple):
            rows = list(group)
            table = None
            has_shape = keys[:1] == ("event",) and keys[-1:] == ("nan_inf_detected",)
            if has_shape and all(row["event"] == "step" and row["nan_inf_detected"] is False for row in rows):
                values = list(itertools.chain.from_iterable(tuple(row.values())[1:-1] for row in rows))
                table = cls.encode(keys[1:-1], values, len(rows))
            pieces += rows if table is None else [table]
        return pieces

    def lines(self, glue_cache: dict[tuple[str, ...], list[bytes]]) -> bytes:
        """Return the rows as journal lines; `glue_cache` holds the glue of each tuple of names."""
        separators = glue_cache.get(self.names)
        if separators is None:
            first, *rest = (_encode(name) for name in self.names)
            separators = [_TAIL + b'{"event":"step",' + first + b":", *(b"," + name + b":" for name in rest)]
            if len(glue_cache) >= 256:
                glue_cache.clear()
            glue_cache[self.names] = separators
        return self.join(None, separators, _TAIL)

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


Encodable = StepTable | dict[str, Any]
"""One or more records, ready to be encoded."""
