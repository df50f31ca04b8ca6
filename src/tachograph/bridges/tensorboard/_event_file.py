"""Reads TensorBoard event files one event at a time, without the package.

An event file is a sequence of frames: the size of the data (8 bytes), a checksum of the size (4), the data, and a
checksum of the data (4). The data is a protocol buffer `Event` with a time, a step and a `Summary` of tagged values.
The checksums are CRC-32C. Python has no fast one, so the data of a frame of more than `_MAX_CHECKED_BYTES`, such as a
picture, is read without a look at its checksum. One of more than `_MAX_EVENT_BYTES` is skipped.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tachograph.importers import Damage, source_changed
from tachograph.importers.protobuf import as_double, as_signed, as_text, read_doubles, read_fields, read_varints

__all__ = ["LoggedEvent", "LoggedValue", "read_events"]

_MAX_CHECKED_BYTES = 256 << 10
_MAX_EVENT_BYTES = 64 << 20
_MAX_TENSOR_BYTES = 256 << 10
_size_and_checksum = struct.Struct("<QI")

# Types of the elements of a tensor, by their number, as formats of `struct`.
_ELEMENTS = {1: "<f", 2: "<d", 3: "<i", 4: "<B", 5: "<h", 6: "<b", 9: "<q", 10: "<?", 17: "<H", 19: "<e"}
_STRING = 7

# The time, the step (absent if 0), and a summary of one value: a tag and a scalar. Each size is a single byte.
_SCALAR_EVENT = re.compile(
    rb"\x09(.{8})(?:\x10([\x80-\xff]{0,9}[\x00-\x7f]))?"
    rb"\x2a([\x00-\x7f])\x0a([\x00-\x7f])\x0a([\x00-\x7f])(.*)\x15(.{4})",
    re.DOTALL,
)


class LoggedValue(NamedTuple):
    """A tagged value of an event."""

    tag: str
    kind: str
    """`scalar`, `text`, `histogram`, `hparams`, `image` or `audio`; values of any other kind are not imported."""
    content: Any = None


class LoggedEvent(NamedTuple):
    """An event, and the offset at which the next one begins."""

    time_s: float
    step: int
    values: list[LoggedValue]
    end: int


def read_events(path: Path, offset: int, damage: list[Damage]) -> Iterator[LoggedEvent]:
    """Yield the events from an offset on, up to the end or the first damage.

    Raises:
        OSError: if the file cannot be read.
        ConfigError: if the file is shorter than the offset.
    """

    def stop(reason: str) -> None:
        damage.append(Damage(str(path), f"byte {offset}", reason))

    with open(path, "rb") as file:
        if os.fstat(file.fileno()).st_size < offset:
            raise source_changed(path)
        file.seek(offset)
        while header := file.read(12):
            if len(header) < 12:
                return stop("the file ends inside an event")
            size, checksum = _size_and_checksum.unpack(header)
            if _masked_crc32c(header[:8]) != checksum:
                return stop("the checksum of an event is wrong")
            end = offset + size + 16
            if size > _MAX_EVENT_BYTES:
                if end > os.fstat(file.fileno()).st_size:
                    return stop("the file ends inside an event")
                file.seek(end)
                offset = end
                yield LoggedEvent(0.0, 0, [LoggedValue("", f"event of more than {_MAX_EVENT_BYTES >> 20} MiB")], end)
                continue
            data = file.read(size + 4)
            if len(data) < size + 4:
                return stop("the file ends inside an event")
            is_checked = size <= _MAX_CHECKED_BYTES
            if is_checked and _masked_crc32c(data[:-4]) != int.from_bytes(data[-4:], "little"):
                return stop("the checksum of an event is wrong")
            try:
                event = _parse_event(data[:-4], end)
            except (ValueError, struct.error) as error:
                return stop(f"an event is not valid: {error}")
            offset = end
            yield event
    return None


def _parse_event(data: bytes, end: int) -> LoggedEvent:
    return _parse_scalar_event(data, end) or _parse_any_event(data, end)


def _parse_scalar_event(data: bytes, end: int) -> LoggedEvent | None:
    """Return an event with one scalar, as most are, several times faster than field by field; None for any other."""
    match = _SCALAR_EVENT.fullmatch(data)
    if match is None:
        return None
    time, step, summary_size, value_size, tag_size, tag, value = match.groups()
    num_bytes = len(tag)
    if (tag_size[0], value_size[0], summary_size[0]) != (num_bytes, num_bytes + 7, num_bytes + 9):
        return None
    scalar = LoggedValue(as_text(tag), "scalar", as_double(value))
    return LoggedEvent(as_double(time), as_signed(read_varints(step)[0]) if step else 0, [scalar], end)


def _parse_any_event(data: bytes, end: int) -> LoggedEvent:
    time_s, step, values = 0.0, 0, []
    for number, value in read_fields(data):
        if number == 1:
            time_s = as_double(value)
        elif number == 2:
            step = as_signed(value)
        elif number == 4:
            values.append(LoggedValue("", "graph"))
        elif number == 5 and isinstance(value, bytes):
            values += [_parse_value(item) for field, item in read_fields(value) if field == 1]
    return LoggedEvent(time_s, step, values, end)


def _parse_value(data: int | bytes) -> LoggedValue:
    tag = plugin = ""
    typed_value: LoggedValue | None = None
    tensor = content = b""
    for number, value in read_fields(data if isinstance(data, bytes) else b""):
        if number == 1:
            tag = as_text(value)
        elif number == 2:
            typed_value = LoggedValue("", "scalar", as_double(value))
        elif number == 4:
            typed_value = LoggedValue("", "image", _parse_encoded(value))
        elif number == 5 and isinstance(value, bytes):
            typed_value = LoggedValue("", "histogram", _parse_histogram(value))
        elif number == 6:
            typed_value = LoggedValue("", "audio", _parse_encoded(value))
        elif number == 8 and isinstance(value, bytes):
            tensor = value
        elif number == 9 and isinstance(value, bytes):
            plugin, content = _parse_plugin(value)
    if typed_value is not None:
        return typed_value._replace(tag=tag)
    if plugin == "hparams":
        return LoggedValue(tag, "hparams", _parse_hparams(content))
    if plugin in {"images", "audio"}:
        return LoggedValue(tag, plugin.removesuffix("s"), _parse_files(plugin, tensor))
    if plugin == "histograms":
        return LoggedValue(tag, "histogram", _parse_histogram_tensor(tensor))
    return (
        LoggedValue(tag, plugin or "tensor") if len(tensor) > _MAX_TENSOR_BYTES else _parse_tensor(tag, plugin, tensor)
    )


def _parse_plugin(metadata: bytes) -> tuple[str, bytes]:
    """Return the name and the data of the plugin that shows a value."""
    name, content = "", b""
    for number, value in read_fields(metadata):
        if number == 1 and isinstance(value, bytes):
            for inner, item in read_fields(value):
                if inner == 1:
                    name = as_text(item)
                elif inner == 2 and isinstance(item, bytes):
                    content = item
    return name, content


def _parse_histogram(data: bytes) -> dict[str, Any]:
    low, limits, counts = 0.0, [], []
    for number, value in read_fields(data):
        if number == 1:
            low = as_double(value)
        elif number == 6:
            limits += read_doubles(value)
        elif number == 7:
            counts += read_doubles(value)
    return {"counts": counts, "edges": [low, *limits]}


def _parse_encoded(data: int | bytes) -> list[bytes]:
    """Return the file in an image or a sound of an event; in both, it is field 4."""
    fields = read_fields(data if isinstance(data, bytes) else b"")
    return [value for number, value in fields if number == 4 and isinstance(value, bytes)][:1]


def _parse_hparams(data: bytes) -> dict[str, Any]:
    """Return the hyperparameters of a session; empty for a definition or the end of a session."""
    hparams: dict[str, Any] = {}
    for number, session in read_fields(data):
        if number != 3 or not isinstance(session, bytes):
            continue
        for field, entry in read_fields(session):
            if field == 1 and isinstance(entry, bytes):
                pair = dict(read_fields(entry))
                value = pair.get(2, b"")
                hparams[as_text(pair.get(1, b""))] = _parse_json_value(value if isinstance(value, bytes) else b"")
    return hparams


def _parse_json_value(data: bytes) -> Any:
    for number, value in read_fields(data):
        if number == 2:
            return as_double(value)
        if number == 3:
            return as_text(value)
        if number == 4:
            return bool(value)
    return None


def _parse_tensor(tag: str, plugin: str, data: bytes) -> LoggedValue:
    """Return the scalar or the text in a tensor; other tensors are not imported."""
    element, num_elements = 0, 1
    numbers: list[float] = []
    texts: list[str] = []
    for number, value in read_fields(data):
        if number == 1 and isinstance(value, int):
            element = value
        elif number == 2 and isinstance(value, bytes):
            num_elements = _num_elements(value)
        elif number == 4 and isinstance(value, bytes) and element in _ELEMENTS:
            kind = struct.Struct(_ELEMENTS[element])
            if len(value) == kind.size:
                numbers += kind.unpack(value)
        elif number == 5 and isinstance(value, bytes):
            numbers += [item for (item,) in struct.iter_unpack("<f", value[: len(value) // 4 * 4])]
        elif number == 6:
            numbers += read_doubles(value)
        elif number in {7, 10, 11} and element in _ELEMENTS:
            numbers += map(as_signed, read_varints(value))
        elif number == 8:
            texts.append(as_text(value))
    if element == _STRING and texts and plugin in {"", "text"}:
        return LoggedValue(tag.removesuffix("/text_summary"), "text", "\n".join(texts))
    if num_elements == 1 and len(numbers) == 1 and plugin in {"", "scalars"}:
        return LoggedValue(tag, "scalar", float(numbers[0]))
    return LoggedValue(tag, plugin or "tensor")


def _parse_histogram_tensor(data: bytes) -> dict[str, Any]:
    """Return the bins of a histogram of TensorBoard 2, which is rows of left edge, right edge and count."""
    numbers: list[float] = []
    for number, value in read_fields(data):
        if number in {4, 6} and len(data) <= _MAX_TENSOR_BYTES:  # as bytes, or as a list
            numbers += read_doubles(value)
    counts = numbers[2::3]
    return {"counts": counts, "edges": [*numbers[:1], *numbers[1::3]][: len(counts) + 1]}


def _parse_files(plugin: str, data: bytes) -> list[bytes]:
    """Return the files in a tensor: pictures after their width and height, or sounds, each with a label."""
    texts = [value for number, value in read_fields(data) if number == 8 and isinstance(value, bytes)]
    return texts[2:] if plugin == "images" else texts[::2]


def _num_elements(shape: bytes) -> int:
    product = 1
    for number, dimension in read_fields(shape):
        if number == 2 and isinstance(dimension, bytes):
            product *= next((as_signed(size) for field, size in read_fields(dimension) if field == 1), 0)
    return product


# Checksums -----------------------------------------------------------------------------------------------------------


def _crc32c_table() -> list[int]:
    table = []
    for number in range(256):
        for _ in range(8):
            number = number >> 1 ^ (0x82F63B78 if number & 1 else 0)  # noqa: PLW2901
        table.append(number)
    return table


_CRC32C = _crc32c_table()


def _masked_crc32c(data: bytes) -> int:
    """Return the checksum of some data as the format stores it: rotated, and a constant added."""
    table, crc = _CRC32C, 0xFFFFFFFF
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
