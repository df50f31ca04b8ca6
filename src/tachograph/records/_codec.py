"""Encode a record as one line of valid JSON, and decode it.

JSON has no NaN and no infinity. They are written as the strings ``"NaN"``, ``"Infinity"`` and ``"-Infinity"``, which
`Number(...)` in JavaScript and `float(...)` in Python parse, and `decode` restores the numbers. A text that equals one
of these markers gets a backslash in front; a text that equals a marker after leading backslashes gets one more. So
every text and every number survives the round trip.

Walking every value to find the rare NaN would dominate the cost of a record. Both directions therefore search the
encoded bytes first: msgspec writes a non-finite number as ``null``, and a marker always ends in ``NaN"`` or
``Infinity"``. Only the values of lines that contain one of these are walked.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec

__all__ = [
    "decode",
    "decode_block",
    "encode",
    "escape_line_separators",
    "mark_non_finite",
    "restore_non_finite",
    "to_json",
]

_NON_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_MARKER_ENDINGS = ("NaN", "Infinity")
_MARKER_BYTES = (b'NaN"', b'Infinity"')
_LINE_SEPARATORS = tuple((chr(code).encode(), f"\\u{code:04x}".encode()) for code in (0x85, 0x2028, 0x2029))

_encode = msgspec.json.Encoder().encode
_decoder = msgspec.json.Decoder()  # noqa: TID251 - untyped
_decode = _decoder.decode
_decode_lines = _decoder.decode_lines


def encode(record: dict[str, Any]) -> bytes:
    """Encode a record of plain values (see `to_plain`) as one line, without its newline."""
    line = _encode(record)
    # A null may be a non-finite number, and a text may look like a marker: both need the slow path.
    if b"null" in line or _MARKER_BYTES[0] in line or _MARKER_BYTES[1] in line:
        line = _encode(mark_non_finite(record))
    return line if line.isascii() else escape_line_separators(line)


def escape_line_separators(line: bytes) -> bytes:
    """Escape characters that some readers, such as Python's `str.splitlines`, treat as the end of a line."""
    for character, escape in _LINE_SEPARATORS:
        line = line.replace(character, escape)
    return line


def decode(line: bytes) -> dict[str, Any]:
    """Decode one line.

    Raises:
        ValueError or msgspec.MsgspecError: if the line is not a JSON object with an `event`.
    """
    record: Any = _decode(line)
    if type(record) is not dict or type(record.get("event")) is not str:
        raise ValueError("not a record: expected a JSON object with an `event`")
    return _restore_record(record) if _MARKER_BYTES[0] in line or _MARKER_BYTES[1] in line else record


def decode_block(block: bytes) -> list[dict[str, Any]] | None:
    """Decode complete lines at once, several times faster than `decode`; return None if a line needs `decode`."""
    try:
        records: list[Any] = _decode_lines(block)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    is_valid = len(records) == block.count(b"\n") and all(
        type(record) is dict and type(record.get("event")) is str for record in records
    )
    if not is_valid:
        return None
    if _MARKER_BYTES[0] in block or _MARKER_BYTES[1] in block:
        for index, line in enumerate(block.split(b"\n")):
            if _MARKER_BYTES[0] in line or _MARKER_BYTES[1] in line:
                records[index] = _restore_record(records[index])
    return records


def to_json(value: Any) -> str:
    """Return plain values as valid JSON, with NaN and infinities encoded as in the journal."""
    return _encode(mark_non_finite(value)).decode()


def mark_non_finite(value: Any) -> Any:
    """Return plain values with NaN and infinities replaced by their markers."""
    if isinstance(value, float):
        if math.isfinite(value):
            return value
        return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"  # noqa: PLR0124 - NaN test
    if isinstance(value, str):
        return "\\" + value if value.lstrip("\\") in _NON_FINITE else value
    if isinstance(value, dict):
        return {name: mark_non_finite(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [mark_non_finite(item) for item in value]
    return value


def _restore_record(record: dict[str, Any]) -> dict[str, Any]:
    """Restore the numbers of a record in place."""
    for name, value in record.items():
        kind = type(value)
        # The kind stays a text even if another program named it "NaN".
        if (kind is str or kind is dict or kind is list) and name != "event":
            record[name] = restore_non_finite(value)
    return record


def restore_non_finite(value: Any) -> Any:
    """Return plain values with the markers of NaN and infinities replaced by the numbers."""
    if isinstance(value, str):
        if not value.endswith(_MARKER_ENDINGS):
            return value
        if value in _NON_FINITE:
            return _NON_FINITE[value]
        return value[1:] if value[0] == "\\" and value.lstrip("\\") in _NON_FINITE else value
    if isinstance(value, dict):
        return {name: restore_non_finite(item) for name, item in value.items()}
    if isinstance(value, list):
        return [restore_non_finite(item) for item in value]
    return value
