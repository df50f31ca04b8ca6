"""Many step records of the same shape, encoded at once.

Formatting floats is most of what writing a record costs, and the journal and its CSV mirror need the same digits.
So the numbers of a batch are encoded once, as one flat JSON array, and the texts between the commas are joined twice
with different glue. Only plain numbers and bools go this way: anything else makes `StepTable.encode` decline.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import msgspec

from tachograph.records._values import is_array

__all__ = ["StepTable"]


def _number(value: Any) -> Any:
    """Read a numpy scalar. An array is declined: whoever logged it can change it, so it must not come this way."""
    if hasattr(type(value), "setflags") and not is_array(value):
        return value.item()
    raise TypeError(type(value).__name__)


_encode = msgspec.json.Encoder(enc_hook=_number).encode
_TAIL = b',"nan_inf_detected":false}\n'


class StepTable:
    """Step records that share their field names: their values, laid end to end, and the texts of these."""

    __slots__ = ("names", "num_rows", "tokens", "values")

    CONSTANTS: tuple[tuple[str, bytes], ...] = (("event", b"step"), ("nan_inf_detected", b"false"))
    """Fields that have the same value in every row and no token."""

    def __init__(self, names: tuple[str, ...], values: list[Any], tokens: list[bytes], num_rows: int) -> None:
        self.names = names
        self.values = values
        self.tokens = tokens
        self.num_rows = num_rows

    @classmethod
    def encode(cls, names: tuple[str, ...], values: list[Any], num_rows: int) -> StepTable | None:
        """Encode rows laid end to end, or return None if a value is not a finite number or a bool."""
        try:
            text = _encode(values)[1:-1]
        except Exception:  # noqa: BLE001 - a value msgspec does not know; the caller encodes record by record
            return None
        # A quote is a text, a bracket or brace is nested, and an "n" is of null: None, NaN or an infinity.
        if b'"' in text or b"n" in text or b"[" in text or b"{" in text:
            return None
        tokens = text.split(b",")
        return cls(names, values, tokens, num_rows) if len(tokens) == len(names) * num_rows else None

    @classmethod
    def gather(cls, records: Iterable[dict[str, Any]]) -> list[StepTable | dict[str, Any]]:
        """Put neighbouring step records of one shape into tables; leave the others as they are."""
        pieces: list[StepTable | dict[str, Any]] = []
        for keys, group in itertools.groupby(records, key=tuple):
            rows = list(group)
            table = None
            has_shape = keys[:1] == ("event",) and keys[-1:] == ("nan_inf_detected",)
            if has_shape and all(row["event"] == "step" and row["nan_inf_detected"] is False for row in rows):
                values = list(itertools.chain.from_iterable(tuple(row.values())[1:-1] for row in rows))
                table = cls.encode(keys[1:-1], values, len(rows))
            pieces += rows if table is None else [table]
        return pieces

    def lines(self, heads: dict[tuple[str, ...], list[bytes]]) -> bytes:
        """Return the rows as lines of the journal; `heads` caches the glue per shape."""
        glue = heads.get(self.names)
        if glue is None:
            first, *rest = (_encode(name) for name in self.names)
            glue = [_TAIL + b'{"event":"step",' + first + b":", *(b"," + name + b":" for name in rest)]
            if len(heads) >= 256:
                heads.clear()
            heads[self.names] = glue
        return self.joined(None, glue, _TAIL)

    def joined(self, order: list[int] | None, glue: list[bytes], tail: bytes) -> bytes:
        """Return the rows with what stands before each token, in the order given, and at the end of a row.

        The first piece of glue begins with the tail of the row before, which the first row does not have.
        """
        width = len(self.names)
        pieces = [b""] * (2 * len(self.tokens))
        pieces[0::2] = glue * self.num_rows
        if order is None:
            pieces[1::2] = self.tokens
        else:
            for position, index in enumerate(order):
                pieces[2 * position + 1 :: 2 * width] = self.tokens[index::width]
        return b"".join(pieces)[len(tail) :] + tail
