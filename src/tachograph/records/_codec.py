"""One record, one line of valid JSON, and back.

JSON has no NaN and no infinity. They are written as the strings ``"NaN"``, ``"Infinity"`` and ``"-Infinity"``
(what `Number(...)` in JavaScript and `float(...)` in Python read back), and `decode` restores them. A text that
happens to read like one of them gets a backslash in front, so that the two are never mixed up.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec

__all__ = ["decode", "decode_block", "encode", "mark_non_finite", "to_json"]

_FROM_TEXT = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_TAILS = ("NaN", "Infinity")
_MARKS = (b'NaN"', b'Infinity"')
_LINE_ENDS = tuple((chr(code).encode(), f"\\u{code:04x}".encode()) for code in (0x85, 0x2028, 0x2029))

_encode = msgspec.json.Encoder().encode
_decoder = msgspec.json.Decoder()
_decode = _decoder.decode
_decode_lines = _decoder.decode_lines


def encode(record: dict[str, Any]) -> bytes:
    """Encode a record of plain values (see `plain`) as one line, without its newline."""
    line = _encode(record)
    # msgspec writes non-finite numbers as null: only a line with a null, or with a text that could be taken for
    # one of ours, needs the slow walk.
    if b"null" in line or _MARKS[0] in line or _MARKS[1] in line:
        line = _encode(mark_non_finite(record))
    return line if line.isascii() else _one_line(line)


def _one_line(line: bytes) -> bytes:
    """Escape what some readers take for the end of a line, such as Python's `str.splitlines`."""
    for raw, escaped in _LINE_ENDS:
        line = line.replace(raw, escaped)
    return line


def decode(line: bytes) -> dict[str, Any]:
    """Decode one line.

    Raises:
        ValueError: if the line is not a JSON object with an `event`.
    """
    record = _decode(line)
    if type(record) is not dict or type(record.get("event")) is not str:
        raise ValueError("not a record: a JSON object with an `event` was expected")
    if _MARKS[0] in line or _MARKS[1] in line:
        restored: dict[str, Any] = _restore(record)
        return restored
    return record


def decode_block(block: bytes) -> list[dict[str, Any]] | None:
    """Decode whole lines at once, which is several times faster; None if one of them needs a closer look."""
    if _MARKS[0] in block or _MARKS[1] in block:
        return None
    try:
        records = _decode_lines(block)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    is_good = len(records) == block.count(b"\n") and all(
        type(record) is dict and type(record.get("event")) is str for record in records
    )
    return records if is_good else None


def to_json(value: Any) -> str:
    """Return valid JSON for plain values that may hold NaN or infinities, as the journal would write them."""
    return _encode(mark_non_finite(value)).decode()


def mark_non_finite(value: Any) -> Any:
    """Return plain values with NaN and infinities as the texts that stand for them."""
    if isinstance(value, float):
        if math.isfinite(value):
            return value
        return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"  # noqa: PLR0124 - NaN test
    if isinstance(value, str):
        return "\\" + value if value.lstrip("\\") in _FROM_TEXT else value
    if isinstance(value, dict):
        return {name: mark_non_finite(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [mark_non_finite(item) for item in value]
    return value


def _restore(value: Any) -> Any:
    if isinstance(value, str):
        if not value.endswith(_TAILS):
            return value
        if value in _FROM_TEXT:
            return _FROM_TEXT[value]
        return value[1:] if value[0] == "\\" and value.lstrip("\\") in _FROM_TEXT else value
    if isinstance(value, dict):
        return {name: _restore(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_restore(item) for item in value]
    return value
